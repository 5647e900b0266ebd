"""Run Python's garbage collector less often while large instances are handled.

An instance and its indices are a million small objects without a reference cycle. While more are allocated, the
collector scans all of them repeatedly: a third of the time of reading, indexing and checking 20,000 ops.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Thresholds of the three generations: allocations before the first is collected, and collections before the next is.
YOUNG, MIDDLE, OLD = 2_000_000, 10, 100

_lock = threading.Lock()
_inside: list[tuple[int, int, int]] = []


@contextmanager
def rarely_collecting() -> Iterator[None]:
    """A context with rare garbage collection; the thresholds return when the last such context of all threads ends."""
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
                # Move many new objects to the oldest generation without scanning them. Asking what is frozen walks
                # over all that is, so few new objects are left to the next collection.
                if gc.get_count()[0] > before[0] and not gc.get_freeze_count():
                    gc.freeze()
                    gc.unfreeze()
                gc.set_threshold(*before)
