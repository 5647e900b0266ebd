"""What a search over offsets needs to know of a packing problem, as arrays.

Time is cut where a lifetime begins or ends. Of the *sections* in between only those matter whose live buffers are not
all live in a neighbour: if the buffers of each of the remaining sections do not overlap, none do. Sizes and alignments
are divided by their greatest common divisor: when buffers rest upon each other, every offset is a multiple of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from optfuse.problem.packing import Lifetime

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Layout:
    """``count`` buffers over sections 0, 1, ...; sizes in units of ``unit`` bytes.

    Attributes:
        unit: Bytes of one unit.
        sizes: Units of each buffer, above zero.
        aligns: Units that each offset must be a multiple of.
        first: First section of each buffer.
        last: The section after its last one.
        members: Buffers of each section, ascending.
        durations: Length of each buffer's lifetime, in the problem's own time.
    """

    unit: int
    sizes: Ints
    aligns: Ints
    first: Ints
    last: Ints
    members: tuple[tuple[int, ...], ...]
    durations: Ints

    @property
    def count(self) -> int:
        """How many buffers."""
        return len(self.sizes)

    @cached_property
    def cover(self) -> Bools:
        """``cover[b, s]``: buffer ``b`` is live in section ``s``."""
        sections = np.arange(len(self.members))
        return (self.first[:, None] <= sections) & (sections < self.last[:, None])

    @cached_property
    def loads(self) -> Ints:
        """Units live in each section."""
        return self.sizes @ self.cover.astype(np.int64)

    @cached_property
    def meets(self) -> tuple[Ints, ...]:
        """The buffers that are live together with each, itself included."""
        return tuple(
            np.nonzero((self.first < self.last[b]) & (self.first[b] < self.last))[0] for b in range(self.count)
        )

    def capacity(self, capacity_bytes: int) -> int:
        """The units that fit in so many bytes."""
        return capacity_bytes // self.unit


def window(problem: Layout, start: int, end: int) -> tuple[Layout, tuple[int, ...]]:
    """The buffers live in the sections from ``start`` up to ``end``, as a problem of their own, and their numbers."""
    numbers = sorted({number for members in problem.members[start:end] for number in members})
    place = {number: new for new, number in enumerate(numbers)}
    part = Layout(
        problem.unit,
        problem.sizes[numbers],
        problem.aligns[numbers],
        np.maximum(problem.first[numbers], start) - start,
        np.minimum(problem.last[numbers], end) - start,
        tuple(tuple(place[number] for number in members) for members in problem.members[start:end]),
        problem.durations[numbers],
    )
    return part, tuple(numbers)


def mirrored(problem: Layout) -> Layout:
    """The problem with time reversed, its buffers numbered backwards."""
    count, end = problem.count, len(problem.members)
    return Layout(
        problem.unit,
        problem.sizes[::-1],
        problem.aligns[::-1],
        end - problem.last[::-1],
        end - problem.first[::-1],
        tuple(tuple(count - 1 - number for number in reversed(members)) for members in reversed(problem.members)),
        problem.durations[::-1],
    )


def layout(buffers: Sequence[Lifetime]) -> Layout:
    """The arrays of some buffers, none of size zero."""
    members = _sections(buffers)
    first, last = [0] * len(buffers), [0] * len(buffers)
    for section in range(len(members) - 1, -1, -1):
        for number in members[section]:
            first[number] = section
    for section, mine in enumerate(members):
        for number in mine:
            last[number] = section + 1
    unit = math.gcd(*(b.size for b in buffers), *(b.alignment for b in buffers if b.alignment > 1)) or 1
    return Layout(
        unit,
        np.array([b.size // unit for b in buffers], np.int64),
        np.array([max(1, b.alignment // unit) for b in buffers], np.int64),
        np.array(first, np.int64),
        np.array(last, np.int64),
        members,
        np.array([b.upper - b.lower for b in buffers], np.int64),
    )


def _sections(buffers: Sequence[Lifetime]) -> tuple[tuple[int, ...], ...]:
    """The sets of buffers live together that lie in no other such set, by time."""
    events = sorted({time for b in buffers for time in (b.lower, b.upper)})
    starts: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for number, buffer in enumerate(buffers):
        starts.setdefault(buffer.lower, []).append(number)
        ends.setdefault(buffer.upper, []).append(number)
    live: set[int] = set()
    found: list[tuple[int, ...]] = []
    grown = False
    for event in events:
        if event in ends and grown:
            found.append(tuple(sorted(live)))
        grown = event in starts or (grown and event not in ends)
        live.difference_update(ends.get(event, ()))
        live.update(starts.get(event, ()))
    return tuple(found)
