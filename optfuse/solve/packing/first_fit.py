"""Quick packings: buffers one by one, each at the lowest offset where it meets none that is placed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from optfuse.solve.arena import TimeIndex
from optfuse.solve.packing.layout import Layout


def best_first_fit(problem: Layout, deadline: float, stop: Callable[[], bool] = lambda: False) -> tuple[int, ...]:
    """The lowest of the first-fit packings by size, by length, by area, and by time (offsets in units).

    Stops when none can be lower, at the deadline (``time.monotonic``) and on ``stop``, but never before the first.
    """
    sizes, lengths, first = problem.sizes.tolist(), problem.durations.tolist(), problem.first.tolist()
    keys = (
        [(-size, -length) for size, length in zip(sizes, lengths, strict=True)],
        [(-length, -size) for size, length in zip(sizes, lengths, strict=True)],
        [(-size * length, -size) for size, length in zip(sizes, lengths, strict=True)],
        [(start, -size) for start, size in zip(first, sizes, strict=True)],
    )
    floor = int(problem.loads.max())
    best: tuple[int, ...] = ()
    least = 0
    for key in keys:
        offsets, height = first_fit(problem, sorted(range(problem.count), key=key.__getitem__))
        if not best or height < least:
            best, least = offsets, height
        if least == floor or time.monotonic() > deadline or stop():
            break
    return best


def first_fit(problem: Layout, sequence: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Offsets in units when buffers are placed in a sequence, and the height that they reach."""
    offsets = [0] * problem.count
    index = TimeIndex(len(problem.members))
    sizes, aligns = problem.sizes.tolist(), problem.aligns.tolist()
    first, last = problem.first.tolist(), problem.last.tolist()
    height = 0
    for number in sequence:
        size, align = sizes[number], aligns[number]
        offset = 0
        for low, high in index.occupied(first[number], last[number] - 1):
            if low - offset >= size:
                break
            offset = max(offset, -(-high // align) * align)
        index.add(first[number], last[number] - 1, (offset, offset + size))
        offsets[number] = offset
        height = max(height, offset + size)
    return tuple(offsets), height
