"""Offsets by depth-first search, lowest first.

Push every buffer of a packing down until it rests on another or on the ground, and list them by offset: each lies just
on top of the highest one below it that was listed before. So it is enough to list buffers, each at the lowest offset
that those listed leave it, offsets never falling. Four rules cut the search:

- *room below*: a buffer is not listed while another could still be placed wholly below it;
- *section floors*: in a section nothing more starts below the lowest offset of its open buffers, which leaves so much
  room; if their sizes need more, the search turns back;
- *twins*: of buffers equal in all respects the first is listed first;
- *parts*: open buffers that no time joins are searched apart, and one part's failure ends them all.

The ideas are those of MiniMalloc (Moffitt, ASPLOS 2023); no code is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from optfuse.solve.packing.layout import Ints, Layout

#: Larger than any offset, small enough to be added to one.
NEVER = 1 << 60

Outcome = Literal["packed", "infeasible", "stopped"]


@dataclass(slots=True)
class _Frame:
    """A part of the problem: its open buffers, and the choices for the next of them that are not tried yet.

    ``parts`` are what the present choice leaves to be packed: None when no choice is made yet.
    """

    open: Ints
    lowest: Ints
    left: Ints
    floor: int
    latest: int
    choices: list[int]
    parts: list[Ints] | None = None
    next_lowest: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    next_left: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    next_floor: int = 0
    next_latest: int = -1


class TreeSearch:
    """One search of a layout within a capacity, in the layout's units.

    After ``run``: ``offsets`` (when packed), ``nodes``, and ``blame``, which counts for each section how often it was
    the one without room.
    """

    def __init__(self, problem: Layout, capacity: int) -> None:
        self.problem = problem
        self.capacity = capacity
        self.offsets = [0] * problem.count
        self.nodes = 0
        self.blame = np.zeros(len(problem.members), np.int64)
        self.never = np.where(problem.cover, 0, NEVER)
        self.rank = np.arange(problem.count)
        self.by_offset = True
        self.aligned = bool((problem.aligns > 1).any())
        self.twins = _twins(problem)

    def run(self, rank: Ints, by_offset: bool, max_nodes: int, deadline: float) -> Outcome:
        """Search until all is packed, nothing is left to try, or the limit is reached.

        Args:
            rank: The place of each buffer in the order in which choices are tried.
            by_offset: Try the choices of lowest offset first, and ``rank`` among equals.
            max_nodes: Choices to try at most.
            deadline: By ``time.monotonic``.
        """
        self.rank, self.by_offset, self.nodes = rank, by_offset, 0
        self.blame[:] = 0
        root = _Frame(np.arange(0), self.blame, self.blame, 0, -1, [])
        root.parts = self._parts(np.arange(self.problem.count))
        root.next_lowest, root.next_left = np.zeros(self.problem.count, np.int64), self.problem.loads
        stack = [root]
        while stack:
            frame = stack[-1]
            if frame.parts is None and not self._choose(frame):
                stack.pop()
                if stack:
                    stack[-1].parts = None
                continue
            if not frame.parts:
                stack.pop()
                continue
            child = self._open(frame, frame.parts.pop())
            if child is None:
                frame.parts = None
            else:
                stack.append(child)
            self.nodes += 1
            if self.nodes > max_nodes or time.monotonic() > deadline:
                return "stopped"
        return "packed" if root.parts is not None else "infeasible"

    def _open(self, frame: _Frame, part: Ints) -> _Frame | None:
        """What may come next in a part, or None when it cannot be packed."""
        lowest = frame.next_lowest[part]
        at = np.maximum(lowest, frame.next_floor)
        sizes = self.problem.sizes[part]
        if self.aligned:
            aligns = self.problem.aligns[part]
            lowest, at = -(-lowest // aligns) * aligns, -(-at // aligns) * aligns
        start, end = self.problem.first[part].min(), self.problem.last[part].max()
        floors = (self.never[part, start:end] + at[:, None]).min(axis=0)
        short = floors + frame.next_left[start:end] > self.capacity
        short &= frame.next_left[start:end] > 0
        if short.any():
            self.blame[start:end][short] += 1
            return None
        fits = (at < (at + sizes).min()) & (lowest >= frame.next_floor) & (at + sizes <= self.capacity)
        if self.twins is not None:
            unplaced = np.zeros(self.problem.count + 1, np.bool_)
            unplaced[part] = True
            fits &= ~unplaced[self.twins[part]]
        if frame.next_latest >= 0:
            fits &= (at > frame.next_floor) | (self.rank[part] > self.rank[frame.next_latest])
        places = np.nonzero(fits)[0]
        ranks = self.rank[part[places]]
        order = np.lexsort((ranks, at[places])) if self.by_offset else np.argsort(ranks)
        choices = places[order][::-1].tolist()
        return _Frame(part, frame.next_lowest, frame.next_left, frame.next_floor, frame.next_latest, choices)

    def _choose(self, frame: _Frame) -> bool:
        """Place the next choice of a part; False when there is none left."""
        if not frame.choices:
            return False
        place = frame.choices.pop()
        buffer = int(frame.open[place])
        offset = max(int(frame.lowest[buffer]), frame.floor)
        align = int(self.problem.aligns[buffer])
        offset = -(-offset // align) * align
        top = offset + int(self.problem.sizes[buffer])
        self.offsets[buffer] = offset
        lowest = frame.lowest.copy()
        meets = self.problem.meets[buffer]
        lowest[meets] = np.maximum(lowest[meets], top)
        left = frame.left.copy()
        left[self.problem.first[buffer] : self.problem.last[buffer]] -= self.problem.sizes[buffer]
        frame.next_lowest, frame.next_left, frame.next_floor, frame.next_latest = lowest, left, offset, buffer
        rest = np.delete(frame.open, place)
        frame.parts = self._parts(rest) if len(rest) else []
        return True

    def _parts(self, buffers: Ints) -> list[Ints]:
        """The buffers in parts that share no section; the part of fewest buffers is last, and so is taken first."""
        by_time = buffers[np.argsort(self.problem.first[buffers], kind="stable")]
        ends = np.maximum.accumulate(self.problem.last[by_time])
        cuts = np.nonzero(self.problem.first[by_time[1:]] >= ends[:-1])[0] + 1
        if not len(cuts):
            return [by_time]
        return sorted(np.split(by_time, cuts), key=len, reverse=True)


def _twins(problem: Layout) -> Ints | None:
    """For each buffer the last one before it that is equal to it, ``count`` where there is none; None: no twins."""
    latest: dict[tuple[int, ...], int] = {}
    twins = np.full(problem.count, problem.count)
    columns = (problem.first, problem.last, problem.sizes, problem.aligns)
    for number, key in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        twins[number] = latest.get(key, problem.count)
        latest[key] = number
    return twins if (twins < problem.count).any() else None
