"""A packing problem as arrays, reduced to the sections of time that matter to a search over offsets.

Time is cut where a lifetime begins or ends. Of the *sections* in between only those are kept whose live buffers are
not all live in a neighbouring section: if no buffers overlap in these, none overlap at all. Sizes and alignments are
divided by their greatest common divisor: in a packing without gaps every offset is a multiple of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from optfuse.problem.packing import Lifetime

#: Limits on (buffer, section) pairs and on pairs of buffers live together. Above these, building the tables and models
#: takes longer than a search may.
MAX_PAIRS = 4_000_000
MAX_OVERLAP_PAIRS = 1_000_000

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
#: The outcome of a search.
Outcome = Literal["packed", "infeasible", "stopped"]


@dataclass(frozen=True)
class Layout:
    """``count`` buffers over sections 0, 1, ...; sizes in units of ``unit`` bytes.

    Attributes:
        unit: Bytes of one unit.
        sizes: Units of each buffer, above zero.
        aligns: Units that each offset must be a multiple of.
        first: First section of each buffer.
        last: The section after its last one.
        sections: How many sections.
        durations: Length of each buffer's lifetime, in the problem's own time.
    """

    unit: int
    sizes: Ints
    aligns: Ints
    first: Ints
    last: Ints
    sections: int
    durations: Ints

    @property
    def count(self) -> int:
        """How many buffers."""
        return len(self.sizes)

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """Buffers of each section, ascending."""
        found: list[list[int]] = [[] for _ in range(self.sections)]
        for number, (first, last) in enumerate(zip(self.first.tolist(), self.last.tolist(), strict=True)):
            for section in range(first, last):
                found[section].append(number)
        return tuple(map(tuple, found))

    @cached_property
    def overlap_pairs(self) -> int:
        """The number of ordered pairs of buffers live together, with each buffer paired with itself."""
        begun = np.searchsorted(np.sort(self.first), self.last, side="left")
        ended = np.searchsorted(np.sort(self.last), self.first, side="right")
        return int((begun - ended).sum())

    @property
    def searchable(self) -> bool:
        """Whether the problem is small enough for a search; otherwise only first fit runs."""
        return self.count * self.sections <= MAX_PAIRS and self.overlap_pairs <= MAX_OVERLAP_PAIRS

    @cached_property
    def cover(self) -> Bools:
        """``cover[b, s]``: buffer ``b`` is live in section ``s``."""
        sections = np.arange(self.sections)
        return (self.first[:, None] <= sections) & (sections < self.last[:, None])

    @cached_property
    def loads(self) -> Ints:
        """Units live in each section."""
        change = np.zeros(self.sections + 1, np.int64)
        np.add.at(change, self.first, self.sizes)
        np.subtract.at(change, self.last, self.sizes)
        return np.cumsum(change)[:-1]

    @cached_property
    def overlapping(self) -> tuple[Ints, ...]:
        """The buffers that are live together with each, itself included."""
        return tuple(
            np.nonzero((self.first < self.last[b]) & (self.first[b] < self.last))[0] for b in range(self.count)
        )

    def capacity(self, capacity_bytes: int) -> int:
        """The units that fit in so many bytes."""
        return capacity_bytes // self.unit


def window(problem: Layout, start: int, end: int) -> tuple[Layout, tuple[int, ...]]:
    """The buffers live in the sections from ``start`` up to ``end``, as a problem of their own, and their numbers."""
    end = min(end, problem.sections)
    numbers = np.nonzero((problem.first < end) & (start < problem.last))[0]
    part = Layout(
        problem.unit,
        problem.sizes[numbers],
        problem.aligns[numbers],
        np.maximum(problem.first[numbers], start) - start,
        np.minimum(problem.last[numbers], end) - start,
        end - start,
        problem.durations[numbers],
    )
    return part, tuple(numbers.tolist())


def mirrored(problem: Layout) -> Layout:
    """The problem with time reversed, its buffers numbered backwards."""
    end = problem.sections
    return Layout(
        problem.unit,
        problem.sizes[::-1],
        problem.aligns[::-1],
        end - problem.last[::-1],
        end - problem.first[::-1],
        end,
        problem.durations[::-1],
    )


def layout(buffers: Sequence[Lifetime]) -> Layout:
    """The arrays of some buffers, none of size zero."""
    first, last, sections = _sections(buffers)
    unit = math.gcd(*(b.size for b in buffers), *(b.alignment for b in buffers if b.alignment > 1)) or 1
    return Layout(
        unit,
        np.array([b.size // unit for b in buffers], np.int64),
        np.array([max(1, b.alignment // unit) for b in buffers], np.int64),
        np.array(first, np.int64),
        np.array(last, np.int64),
        sections,
        np.array([b.upper - b.lower for b in buffers], np.int64),
    )


def _sections(buffers: Sequence[Lifetime]) -> tuple[list[int], list[int], int]:
    """The first section of each buffer, the section after its last one, and how many sections there are.

    A section is a set of buffers that are live together and lie in no other such set; sections are numbered by time.
    """
    starts: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for number, buffer in enumerate(buffers):
        starts.setdefault(buffer.lower, []).append(number)
        ends.setdefault(buffer.upper, []).append(number)
    first, last = [0] * len(buffers), [0] * len(buffers)
    sections = 0
    grown = False
    for event in sorted(starts.keys() | ends.keys()):
        if event in ends:
            sections += grown
            grown = False
            for number in ends[event]:
                last[number] = sections
        if event in starts:
            grown = True
            for number in starts[event]:
                first[number] = sections
    return first, last, sections
