"""Remember what was computed from an instance, by identity: hashing a large instance costs more than most lookups."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from optfuse.problem.instance import Instance

T = TypeVar("T")


def per_instance(function: Callable[[Instance], T], size: int = 16) -> Callable[[Instance], T]:
    """Cache ``function(instance)`` for the last ``size`` instances used.

    The cache holds the instance itself, so that its id cannot be taken by another object while the entry lives.
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
        while len(entries) > size:
            entries.popitem(last=False)
        return value

    return cached
