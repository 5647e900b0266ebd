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
from dataclasses import dataclass
from typing import Literal

import numpy as np

from optfuse.solve.packing.layout import Ints, Layout

#: Larger than any offset, small enough to be added to one.
NEVER = 1 << 60

Outcome = Literal["packed", "infeasible", "stopped"]


@dataclass(frozen=True, slots=True)
class _State:
    """What placed buffers leave.

    Attributes:
        lowest: The lowest offset of each buffer; ``NEVER`` once it is placed.
        left: Units of the open buffers of each section.
        floors: The lowest offset of the open buffers of each section.
        floor: The offset of the last placed buffer, below which none is placed any more.
        latest: That buffer, or -1.
    """

    lowest: Ints
    left: Ints
    floors: Ints
    floor: int
    latest: int


@dataclass(slots=True)
class _Frame:
    """A part of the problem: its open buffers, and the choices for the next of them that are not tried yet.

    ``parts`` are what the present choice leaves to be packed: None when no choice is made yet.
    """

    open: Ints
    state: _State
    choices: list[int]
    parts: list[Ints] | None = None
    next: _State | None = None


class TreeSearch:
    """One search of a layout within a capacity, in the layout's units.

    ``pinned`` are offsets that are given, -1 for the buffers that are free. A pinned buffer is listed when its offset's
    turn comes, and nothing may rest higher below it.

    After ``run``: ``offsets`` (when packed), ``nodes``, and ``blame``, which counts for each section how often it was
    the one without room.
    """

    def __init__(self, problem: Layout, capacity: int, pinned: Ints | None = None) -> None:
        self.problem = problem
        self.capacity = capacity
        self.pinned = pinned
        self.offsets = [0] * problem.count
        self.nodes = 0
        self.blame = np.zeros(len(problem.members), np.int64)
        self.never = np.where(problem.cover, 0, NEVER)
        self.rank = np.arange(problem.count)
        self.by_offset = True
        self.aligned = bool((problem.aligns > 1).any())
        self.twins = _twins(problem, pinned)
        self.reach = _reach(problem)

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
        problem = self.problem
        nothing = np.zeros(problem.count, np.int64)
        start = _State(nothing, problem.loads, np.zeros(len(problem.members), np.int64), 0, -1)
        root = _Frame(nothing[:0], start, [], self._parts(np.argsort(problem.first, kind="stable")), start)
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
            assert frame.next is not None
            child = self._open(frame.next, frame.parts.pop())
            if child is None:
                frame.parts = None
            else:
                stack.append(child)
            self.nodes += 1
            if self.nodes > max_nodes or time.monotonic() > deadline:
                return "stopped"
        return "packed" if root.parts is not None else "infeasible"

    def _open(self, state: _State, part: Ints) -> _Frame | None:
        """What may come next in a part, or None when it cannot be packed."""
        problem = self.problem
        start, end = problem.first[part[0]], problem.last[part].max()
        left = state.left[start:end]
        short = np.maximum(state.floors[start:end], state.floor) + left > self.capacity
        short &= left > 0
        if short.any():
            self.blame[start:end][short] += 1
            return None
        lowest = state.lowest[part]
        at = np.maximum(lowest, state.floor)
        if self.aligned:
            aligns = problem.aligns[part]
            lowest, at = -(-lowest // aligns) * aligns, -(-at // aligns) * aligns
        rests = lowest >= state.floor
        if self.pinned is not None:
            pins = self.pinned[part]
            late = (pins >= 0) & (at > pins)
            if late.any():
                self.blame[problem.first[part[late]]] += 1
                return None
            at, rests = np.maximum(at, pins), rests | (pins >= 0)
        tops = at + problem.sizes[part]
        fits = (at < tops.min()) & rests & (tops <= self.capacity)
        if self.twins is not None:
            unplaced = np.zeros(problem.count + 1, np.bool_)
            unplaced[part] = True
            fits &= ~unplaced[self.twins[part]]
        places = np.nonzero(fits)[0]
        ranks = self.rank[part[places]]
        if state.latest >= 0:
            later = (at[places] > state.floor) | (ranks > self.rank[state.latest])
            places, ranks = places[later], ranks[later]
        order = np.lexsort((ranks, at[places])) if self.by_offset else np.argsort(ranks)
        return _Frame(part, state, places[order][::-1].tolist())

    def _choose(self, frame: _Frame) -> bool:
        """Place the next choice of a part; False when there is none left."""
        if not frame.choices:
            return False
        problem, state = self.problem, frame.state
        place = frame.choices.pop()
        buffer = int(frame.open[place])
        align = int(problem.aligns[buffer])
        offset = -(-max(int(state.lowest[buffer]), state.floor) // align) * align
        if self.pinned is not None:
            offset = max(offset, int(self.pinned[buffer]))
        self.offsets[buffer] = offset
        lowest, left, floors = state.lowest.copy(), state.left.copy(), state.floors.copy()
        meets = problem.meets[buffer]
        lowest[meets] = np.maximum(lowest[meets], offset + problem.sizes[buffer])
        lowest[buffer] = NEVER
        left[problem.first[buffer] : problem.last[buffer]] -= problem.sizes[buffer]
        rows, sections = self.reach[buffer]
        floors[sections] = (self.never[rows, sections] + lowest[rows, None]).min(axis=0)
        frame.next = _State(lowest, left, floors, offset, buffer)
        rest = np.delete(frame.open, place)
        frame.parts = self._parts(rest) if len(rest) else []
        return True

    def _parts(self, buffers: Ints) -> list[Ints]:
        """Buffers in order of time, in parts that share no section; the part of fewest is last, and is taken first."""
        ends = np.maximum.accumulate(self.problem.last[buffers])
        cuts = np.nonzero(self.problem.first[buffers[1:]] >= ends[:-1])[0] + 1
        if not len(cuts):
            return [buffers]
        return sorted(np.split(buffers, cuts), key=len, reverse=True)


def _reach(problem: Layout) -> list[tuple[slice, slice]]:
    """Whose floors change when a buffer is placed: those sections, and rows that hold all buffers live in them.

    The rows are few when buffers are numbered by time.
    """
    found: list[tuple[slice, slice]] = []
    for meets in problem.meets:
        start, end = int(problem.first[meets].min()), int(problem.last[meets].max())
        near = np.nonzero((problem.first < end) & (problem.last > start))[0]
        found.append((slice(int(near[0]), int(near[-1]) + 1), slice(start, end)))
    return found


def _twins(problem: Layout, pinned: Ints | None) -> Ints | None:
    """For each free buffer the last one before it that is equal to it, ``count`` for none; None: there are no twins."""
    latest: dict[tuple[int, ...], int] = {}
    twins = np.full(problem.count, problem.count)
    columns = (problem.first, problem.last, problem.sizes, problem.aligns)
    for number, key in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        if pinned is not None and pinned[number] >= 0:
            continue
        twins[number] = latest.get(key, problem.count)
        latest[key] = number
    return twins if (twins < problem.count).any() else None
