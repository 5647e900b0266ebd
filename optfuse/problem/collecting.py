"""Spare Python's garbage collector the work that finds nothing here.

An instance and its indices are a million small objects without a single circle among them. While more are made, the
collector goes through all of them again and again: a third of the time of reading, indexing and checking 20,000 ops.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Objects made before the young ones are looked at, and how many of such looks before the old ones are.
YOUNG, MIDDLE, OLD = 2_000_000, 10, 100

_lock = threading.Lock()
_inside: list[tuple[int, int, int]] = []


@contextmanager
def rarely_collecting() -> Iterator[None]:
    """Look for garbage less often while this lasts; as before once the outermost of these, in all threads, is over."""
    with _lock:
        _inside.append(gc.get_threshold())
        if len(_inside) == 1 and gc.isenabled():
            gc.set_threshold(YOUNG, MIDDLE, OLD)
    try:
        yield
    finally:
        with _lock:
            before = _inside.pop()
            if not _inside:
                if not gc.get_freeze_count():  # what was made counts as old, and is not looked at on the way there
                    gc.freeze()
                    gc.unfreeze()
                gc.set_threshold(*before)
