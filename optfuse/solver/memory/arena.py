"""Offsets in one arena for buffers with known lifetimes, by first fit.

A lifetime includes both its first and its last kernel: a kernel does not write where it still reads, since it may read
and write at different indexes. Buffers for which that is known to be safe (``reuse``) come here as one span.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from optfuse.solver.control.clock import WALL, Clock

ALIGNMENT = 64


class Span(NamedTuple):
    """A buffer that needs ``bytes`` from kernel position ``first`` to ``last``, both included."""

    buffer: int
    bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Packing:
    """Offsets in the order of the spans, and the arena's size in bytes."""

    offsets: tuple[int, ...]
    arena_bytes: int


def aligned(size: int) -> int:
    """A size rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def arena_floor(spans: Sequence[Span]) -> int:
    """The largest sum of aligned bytes live at once: no arena is smaller."""
    change: dict[int, int] = {}
    for span in spans:
        change[span.first] = change.get(span.first, 0) + aligned(span.bytes)
        change[span.last + 1] = change.get(span.last + 1, 0) - aligned(span.bytes)
    live = peak = 0
    for place in sorted(change):
        live += change[place]
        peak = max(peak, live)
    return peak


def pack(spans: Sequence[Span], deadline: float | None = None, clock: Clock = WALL) -> Packing:
    """The smallest of several first-fit packings: by size, in order of time, by lifetime, by area.

    Stops when none can be smaller, and at ``deadline``, a time of ``clock``, but never before the first.
    """
    floor = arena_floor(spans)
    keys = (
        lambda span: (-span.bytes, span.first, span.buffer),
        lambda span: (span.first, -span.bytes, span.buffer),
        lambda span: (-(span.last - span.first), -span.bytes, span.buffer),
        lambda span: (-span.bytes * (span.last - span.first + 1), span.first, span.buffer),
    )
    best: Packing | None = None
    for key in keys:
        packing = _first_fit(spans, sorted(range(len(spans)), key=lambda i, key=key: key(spans[i])))
        if best is None or packing.arena_bytes < best.arena_bytes:
            best = packing
        if best.arena_bytes <= floor or (deadline is not None and clock.now() >= deadline):
            break
    assert best is not None
    return best


def sweep(spans: Sequence[Span]) -> Packing:
    """The packing of a best-fit allocator: spans in order of time, each in the smallest hole it fits.

    Usually larger than that of ``pack``, in a tenth of its time.
    """
    offsets = [0] * len(spans)
    holes = Holes()
    live: list[tuple[int, int, int]] = []  # (last kernel, offset, size)
    for number in sorted(range(len(spans)), key=lambda i: (spans[i].first, -spans[i].bytes)):
        span = spans[number]
        size = aligned(span.bytes)
        if not size:
            continue
        while live and live[0][0] < span.first:
            _, offset, freed = heappop(live)
            holes.add(offset, freed)
        offsets[number] = holes.take(size)
        heappush(live, (span.last, offsets[number], size))
    return Packing(tuple(offsets), holes.end)


class Holes:
    """Free intervals of an arena that grows as it must; ``end`` is its size so far."""

    def __init__(self) -> None:
        self.end = 0
        self._by_size: list[tuple[int, int]] = []
        self._ending: dict[int, int] = {}  # offset by end
        self._size: dict[int, int] = {}  # size by offset

    def add(self, offset: int, size: int) -> None:
        """Free an interval and join it to adjacent holes."""
        before, after = self._ending.get(offset), self._size.get(offset + size)
        if after is not None:
            self._remove(offset + size, after)
            size += after
        if before is not None:
            length = self._size[before]
            self._remove(before, length)
            offset, size = before, size + length
        insort(self._by_size, (size, offset))
        self._size[offset] = size
        self._ending[offset + size] = offset

    def take(self, size: int) -> int:
        """Allocate an interval, in the smallest hole or at the end of the arena, and return its offset."""
        place = bisect_left(self._by_size, (size, 0))
        if place < len(self._by_size):
            room, offset = self._by_size[place]
            self._remove(offset, room)
            if room > size:
                self.add(offset + size, room - size)
            return offset
        offset = self._ending.get(self.end, self.end)  # the last hole, if it reaches the end, is made larger
        if offset < self.end:
            self._remove(offset, self.end - offset)
        self.end = offset + size
        return offset

    def _remove(self, offset: int, size: int) -> None:
        del self._by_size[bisect_left(self._by_size, (size, offset))]
        del self._size[offset]
        del self._ending[offset + size]


def _first_fit(spans: Sequence[Span], sequence: Sequence[int]) -> Packing:
    """Place spans one by one, each at the lowest offset where it meets no placed span that is live with it."""
    offsets = [0] * len(spans)
    index = TimeIndex(max((span.last for span in spans), default=0) + 1)
    arena = 0
    for number in sequence:
        span = spans[number]
        size = aligned(span.bytes)
        offset = 0
        if size:
            for low, high in index.occupied(span.first, span.last):
                if low - offset >= size:
                    break
                offset = max(offset, high)
            index.add(span.first, span.last, (offset, offset + size))
        offsets[number] = offset
        arena = max(arena, offset + size)
    return Packing(tuple(offsets), arena)


class TimeIndex:
    """Occupied intervals of the arena, found by time: a binary tree of time ranges."""

    def __init__(self, length: int) -> None:
        self.size = 1
        while self.size < length:
            self.size *= 2
        #: Intervals that fill a node's whole time range, and those that touch it somewhere below.
        self.whole: dict[int, list[tuple[int, int]]] = {}
        self.below: dict[int, list[tuple[int, int]]] = {}

    def add(self, first: int, last: int, interval: tuple[int, int]) -> None:
        for node in self._cover(first, last):
            self.whole.setdefault(node, []).append(interval)
            node //= 2
            while node:
                self.below.setdefault(node, []).append(interval)
                node //= 2

    def occupied(self, first: int, last: int) -> list[tuple[int, int]]:
        """Intervals live at some time of the range, by offset."""
        found: set[tuple[int, int]] = set()
        for node in self._cover(first, last):
            found.update(self.below.get(node, ()))
            while node:
                found.update(self.whole.get(node, ()))
                node //= 2
        return sorted(found)

    def _cover(self, first: int, last: int) -> list[int]:
        """The fewest tree nodes that together are the range."""
        low, high = first + self.size, last + self.size + 1
        nodes: list[int] = []
        while low < high:
            if low & 1:
                nodes.append(low)
                low += 1
            if high & 1:
                high -= 1
                nodes.append(high)
            low //= 2
            high //= 2
        return nodes
