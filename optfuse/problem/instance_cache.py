"""Cache results by instance identity: hashing a large instance costs more than most lookups."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from optfuse.problem.instance import Instance

T = TypeVar("T")


def per_instance(function: Callable[[Instance], T], size: int = 16) -> Callable[[Instance], T]:
    """``function`` with its results cached for the last ``size`` instances used, and for the one of most ops.

    The others are parts of that one, which is used again after them. The cache holds the instances themselves, so that
    their ids cannot be reused while the entries live.
    """
    entries: OrderedDict[int, tuple[Instance, T]] = OrderedDict()

    @wraps(function)
    def cached(instance: Instance) -> T:
        entry = entries.get(id(instance))
        if entry is not None:
            entries.move_to_end(id(instance))
            return entry[1]
        value = function(instance)
        entries[id(instance)] = (instance, value)
        if len(entries) > size:
            largest = max(entries, key=lambda key: len(entries[key][0].ops))
            del entries[next(key for key in entries if key != largest)]
        return value

    return cached
