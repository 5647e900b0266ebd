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
from collections.abc import Sequence

import numpy as np

from optfuse.lab.packing.compiled import (
    FRAME_FIELDS,
    INFEASIBLE,
    NEEDS_ROOM,
    PACKED,
    STACKS,
    Facts,
    Search,
    advance,
    begin,
)
from optfuse.lab.packing.layout import Ints, Layout, Outcome

#: Steps between two looks at the clock.
SLICE = 2000
#: Rows that stacks begin with; they double when they have to.
ROWS = 1 << 14


class TreeSearch:
    """One search of a layout within a capacity, in the layout's units.

    ``pinned`` are offsets that are given, -1 for the buffers that are free. A pinned buffer is listed when its offset's
    turn comes, and nothing may rest higher below it.

    After ``run``: ``offsets`` (when packed), ``nodes``, and ``blame``, which counts for each section how often it was
    the one without room.
    """

    def __init__(
        self, problem: Layout, capacity: int, pinned: Ints | None = None, steps: int = SLICE, rows: int = ROWS
    ) -> None:
        """``steps``: between two looks at the clock; ``rows``: of the stacks at first."""
        self.count = problem.count
        self.nodes = 0
        # By time: what is live together has near numbers.
        self._order = np.argsort(problem.first, kind="stable")
        self._facts = _facts(problem, capacity, pinned, self._order)
        self._steps = steps
        self._search = _search(problem, rows)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Offsets by buffer, once all is packed."""
        offsets = np.empty(self.count, np.int64)
        offsets[self._order] = self._search.offsets
        return tuple(offsets.tolist())

    @property
    def blame(self) -> Ints:
        """How often each section was the one without room."""
        return self._search.blame

    def run(self, rank: Ints, by_offset: bool, max_nodes: int, deadline: float) -> Outcome:
        """Search until all is packed, nothing is left to try, or the limit is reached.

        Args:
            rank: The place of each buffer in the order in which choices are tried.
            by_offset: Try the choices of lowest offset first, and ``rank`` among equals.
            max_nodes: Choices to try at most.
            deadline: By ``time.monotonic``.
        """
        self.nodes = 0
        self._search.rank[:] = rank[self._order]
        begin(self._facts, self._search)
        while self.nodes < max_nodes and time.monotonic() < deadline:
            steps = min(self._steps, max_nodes - self.nodes)
            found, taken = advance(self._facts, self._search, by_offset, steps)
            self.nodes += taken
            if found == PACKED:
                return "packed"
            if found == INFEASIBLE:
                return "infeasible"
            if found == NEEDS_ROOM:
                self._grow()
        return "stopped"

    def _grow(self) -> None:
        """Twice the room for choices and changes; ``np.resize`` keeps what there is at the beginning."""
        search = self._search
        self._search = search._replace(
            choices=np.resize(search.choices, (2 * len(search.choices), 2)),
            trail=np.resize(search.trail, (2 * len(search.trail), 3)),
        )


def _facts(problem: Layout, capacity: int, pinned: Ints | None, order: Ints) -> Facts:
    place = np.empty(problem.count, np.int64)
    place[order] = np.arange(problem.count)
    pins = np.full(problem.count, -1, np.int64) if pinned is None else pinned
    member_rows, members = _rows([place[list(section)] for section in problem.members])
    overlap_rows, overlapping = _rows([place[problem.overlapping[buffer]] for buffer in order])
    columns = (problem.first, problem.last, problem.sizes, problem.aligns, pins)
    first, last, sizes, aligns, pins = (np.ascontiguousarray(column[order]) for column in columns)
    twins = _twins(first, last, sizes, aligns, pins)
    return Facts(first, last, sizes, aligns, pins, twins, member_rows, members, overlap_rows, overlapping, capacity)


def _rows(lists: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Lists behind one another, and where each begins."""
    starts = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(row) for row in lists], out=starts[1:])
    return starts, np.concatenate([*lists, np.empty(0, np.int64)])


def _twins(*columns: Ints) -> Ints:
    """For each free buffer the last one before it that is equal to it in all respects, -1 for none."""
    latest: dict[tuple[int, ...], int] = {}
    pins = columns[-1]
    twins = np.full(len(pins), -1, np.int64)
    for number, key in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        if pins[number] < 0:
            twins[number] = latest.get(key, -1)
            latest[key] = number
    return twins


def _search(problem: Layout, least: int) -> Search:
    count, sections = problem.count, problem.sections

    def zeros(*shape: int) -> Ints:
        return np.zeros(shape, np.int64)

    rows = max(least, 2 * (count + 2 * sections))
    return Search(
        lowest=zeros(count),
        left=zeros(sections),
        floors=zeros(sections),
        after=zeros(count + 2),
        before=zeros(count + 2),
        frames=zeros(count + 2, FRAME_FIELDS),
        choices=zeros(rows, 2),
        parts=zeros(count + 1, 3),
        trail=zeros(rows, 3),
        placed=zeros(count),
        lengths=zeros(STACKS),
        offsets=zeros(count),
        blame=zeros(sections),
        rank=zeros(count),
        stale=np.zeros(sections, np.bool_),
    )
