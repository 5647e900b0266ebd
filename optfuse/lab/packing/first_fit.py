"""Greedy packings: buffers in sequence, each at the lowest offset that overlaps no buffer placed before."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from optfuse.lab.packing.layout import Layout
from optfuse.solver.memory.arena import Holes, TimeIndex

#: Buffers placed between two checks of the deadline.
STEP = 16


def best_first_fit(problem: Layout, deadline: float, stop: Callable[[], bool] = lambda: False) -> tuple[int, ...]:
    """The lowest of a sweep over time and the first-fit packings by size, length, area and time (offsets in units).

    Stops when none can be lower, at the deadline (``time.monotonic``) and on ``stop``, but never before the sweep,
    which takes a second for 300,000 buffers.
    """
    best, least = sweep_over_time(problem)
    sizes, lengths, first = problem.sizes.tolist(), problem.durations.tolist(), problem.first.tolist()
    keys = (
        [(-size, -length) for size, length in zip(sizes, lengths, strict=True)],
        [(-length, -size) for size, length in zip(sizes, lengths, strict=True)],
        [(-size * length, -size) for size, length in zip(sizes, lengths, strict=True)],
        [(start, -size) for start, size in zip(first, sizes, strict=True)],
    )
    floor = int(problem.loads.max())
    for key in keys:
        if least == floor or time.monotonic() > deadline or stop():
            break
        found = first_fit(problem, sorted(range(problem.count), key=key.__getitem__), deadline)
        if found is not None and found[1] < least:
            best, least = found
    return best


def first_fit(
    problem: Layout, sequence: Sequence[int], deadline: float = float("inf")
) -> tuple[tuple[int, ...], int] | None:
    """Return the offsets in units of buffers placed in a sequence, and their height.

    None if the deadline (``time.monotonic``) passes first.
    """
    offsets = [0] * problem.count
    index = TimeIndex(problem.sections)
    sizes, aligns = problem.sizes.tolist(), problem.aligns.tolist()
    first, last = problem.first.tolist(), problem.last.tolist()
    height = 0
    for place, number in enumerate(sequence):
        if place % STEP == 0 and time.monotonic() > deadline:
            return None
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


def sweep_over_time(problem: Layout) -> tuple[tuple[int, ...], int]:
    """Offsets in units as an allocator would choose them at run time, and their height.

    Each buffer takes the smallest hole that has room for it and for what its alignment may cost.
    """
    offsets = [0] * problem.count
    sizes, aligns = problem.sizes.tolist(), problem.aligns.tolist()
    first, last = problem.first.tolist(), problem.last.tolist()
    holes = Holes()
    live: list[tuple[int, int, int]] = []  # (section after the last, offset of the hole taken, its size)
    height = 0
    for number in sorted(range(problem.count), key=lambda number: (first[number], -sizes[number])):
        while live and live[0][0] <= first[number]:
            _, offset, freed = heappop(live)
            holes.add(offset, freed)
        align = aligns[number]
        room = sizes[number] + align - 1
        taken = holes.take(room)
        heappush(live, (last[number], taken, room))
        offsets[number] = -(-taken // align) * align
        height = max(height, offsets[number] + sizes[number])
    return tuple(offsets), height
