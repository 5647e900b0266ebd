"""The order of least peak, by best-first search over sets of finished kernels.

Which bytes are live after some kernels have run depends on which have run, not on their order. So the search walks
these sets, always onward from the one reached at the lowest peak; the first to reach the end is optimal, and the peak
of the set in hand is a lower bound on every order's peak at any time. A kernel that fits under the peak reached so far
and leaves no more bytes live than it found is run at once: doing so never raises another kernel's peak.

The search runs forwards and backwards in turns (an order and its reverse have the same peak). One direction is often
far smaller: forwards, kernels without predecessors may run at any time, and every subset of them is a state of its
own; backwards each runs at once, right after its consumers.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from optfuse.problem.op_masks import bits, mask_of
from optfuse.solver.control.clock import WALL, Clock
from optfuse.solver.memory.order_problem import OrderProblem, Storage, floor_bytes, peak_bytes

#: The most sets of finished kernels examined, and the most bits of those kept: each is a mask of all kernels.
MAX_STATES = 100_000
MAX_BITS = 4_000_000_000
#: Rough seconds of a step; a deterministic solve counts steps instead of seconds.
STEP_SECONDS = 6e-6
#: Steps (a kernel tried after a set) of one direction before the other has its turn. Sets are not counted: one costs a
#: hundred times as much in one direction as in the other.
TURN = 4000


@dataclass(frozen=True, slots=True)
class OrderOutcome:
    """An order, its peak, and a lower bound on the peak of any order; they are equal exactly when it is optimal.

    ``steps`` counts the work done.
    """

    order: tuple[int, ...]
    peak: int
    bound: int
    steps: int = field(default=0, compare=False)

    @property
    def proven(self) -> bool:
        """Whether no order has a lower peak."""
        return self.peak == self.bound


def least_peak_order(
    problem: OrderProblem,
    start: Sequence[int],
    max_states: int = MAX_STATES,
    deadline: float | None = None,
    max_steps: int | None = None,
    clock: Clock = WALL,
) -> OrderOutcome:
    """An order of least peak, or ``start`` and a bound after ``max_states``, ``max_steps`` or at a deadline.

    ``start`` is a valid order; ``deadline`` is a time of ``clock``.
    """
    start_peak = peak_bytes(problem, start)
    bound = floor_bytes(problem)
    if start_peak == bound or (deadline is not None and clock.now() >= deadline):
        return OrderOutcome(tuple(start), start_peak, bound)
    until = math.inf if deadline is None else deadline
    states = min(max_states, MAX_BITS // (2 * len(problem.before)))
    searches = (_Search(problem, start_peak, until, clock), _Search(_backwards(problem), start_peak, until, clock))
    # Building the masks of very many kernels takes so long that the deadline may have passed.
    while all(search.looked_at <= states for search in searches) and clock.now() < until:
        if max_steps is not None and _steps(searches) >= max_steps:
            break
        for search, backwards in zip(searches, (False, True), strict=True):
            order = search.advance(TURN, states)
            bound = max(bound, search.bound)
            if order is not None:
                found = order[::-1] if backwards else order
                return OrderOutcome(found, peak_bytes(problem, found), bound, _steps(searches))
            if search.exhausted:
                return OrderOutcome(tuple(start), start_peak, start_peak, _steps(searches))
    return OrderOutcome(tuple(start), start_peak, min(bound, start_peak), _steps(searches))


def _steps(searches: Iterable[_Search]) -> int:
    return sum(search.states.steps for search in searches)


def _backwards(problem: OrderProblem) -> OrderProblem:
    """The problem with time reversed: the reverse of an order has the same peak.

    Unused donated inputs would be live at the last kernel instead of the first: they are left out, so that the bound
    stays true.
    """
    storages = tuple(
        Storage(storage.buffer, storage.bytes, storage.users, storage.to_end, storage.from_start)
        for storage in problem.storages
        if storage.users or storage.to_end
    )
    return OrderProblem(problem.after, problem.before, storages, problem.base, tuple(-a for a in problem.anchor))


class _Search:
    """Best-first search over sets of finished kernels, in turns.

    ``bound`` is not above the peak of any order, ``exhausted`` says that none has a lower peak than ``limit``.
    """

    def __init__(self, problem: OrderProblem, limit: int, deadline: float, clock: Clock) -> None:
        self.limit, self.late = limit, lambda: clock.now() >= deadline
        self.states = _States(problem)
        self.goal = (1 << len(problem.before)) - 1
        self.heap = [_Entry(0, len(problem.before), 0, self.states.roots, self.states.at_start, -1, ())]
        self.reached: dict[int, _Entry] = {}
        self.bound = floor_bytes(problem)
        self.exhausted = False

    @property
    def looked_at(self) -> int:
        """The number of sets examined."""
        return len(self.reached)

    def advance(self, steps: int, max_looked_at: int) -> tuple[int, ...] | None:
        """Search for about so many steps, or to the deadline; an order of least peak when the last set is reached."""
        end = self.states.steps + steps
        while self.heap and self.states.steps < end and self.looked_at <= max_looked_at:
            here = heapq.heappop(self.heap)
            if here.done in self.reached:
                continue
            self.bound = max(self.bound, here.peak)
            self.reached[here.done] = here
            if here.done == self.goal:
                return _walk_back(self.reached, self.goal)
            for kernel in bits(here.ready):
                if self.late():
                    return None
                during, after = self.states.step(here.done, here.live, kernel)
                peak = max(here.peak, during)
                if peak < self.limit:
                    entry = self.states.run_dominant(here, kernel, peak, after, max(peak, self.bound), self.late)
                    if entry.done not in self.reached:
                        heapq.heappush(self.heap, entry)
        self.exhausted = not self.heap
        return None


class _Entry(NamedTuple):
    """A set of finished kernels and how it was reached. Compared by peak, then by ``left``.

    ``path`` are the kernels run since the set ``origin``; ``ready`` those that may run next.
    """

    peak: int
    left: int
    done: int
    ready: int
    live: int
    origin: int
    path: tuple[int, ...]


def _walk_back(reached: dict[int, _Entry], goal: int) -> tuple[int, ...]:
    parts: list[tuple[int, ...]] = []
    done = goal
    while done > 0:
        parts.append(reached[done].path)
        done = reached[done].origin
    return tuple(kernel for path in reversed(parts) for kernel in path)


class _States:
    """Sets of finished kernels as masks: what may run next, and what is live."""

    def __init__(self, problem: OrderProblem) -> None:
        self.problem = problem
        self.steps = 0
        self.before = [mask_of(mine) for mine in problem.before]
        self.roots = mask_of(kernel for kernel, mine in enumerate(problem.before) if not mine)
        self.users = [mask_of(storage.users) for storage in problem.storages]
        self.of_kernel: list[list[int]] = [[] for _ in problem.before]
        for number, storage in enumerate(problem.storages):
            for user in storage.users:
                self.of_kernel[user].append(number)
        from_start = [storage for storage in problem.storages if storage.from_start]
        self.at_start = problem.base + sum(storage.bytes for storage in from_start)
        #: Live during the first kernel only: unused donated inputs.
        self.brief = sum(storage.bytes for storage in from_start if not storage.users and not storage.to_end)

    def step(self, done: int, live: int, kernel: int) -> tuple[int, int]:
        """Live bytes while a kernel runs, and after it."""
        self.steps += 1
        during = live
        freed = 0 if done else self.brief
        finished = done | 1 << kernel
        for number in self.of_kernel[kernel]:
            storage = self.problem.storages[number]
            if not storage.from_start and not self.users[number] & done:
                during += storage.bytes
            if not storage.to_end and not self.users[number] & ~finished:
                freed += storage.bytes
        return during, during - freed

    def run_dominant(
        self, here: _Entry, kernel: int, peak: int, live: int, allowance: int, late: Callable[[], bool]
    ) -> _Entry:
        """The entry after ``kernel`` and all kernels that fit in ``allowance`` and leave no more bytes live.

        It stops early once it is ``late``; the entry is then valid, only less far.
        """
        done, ready = self.advance(here.done, here.ready, kernel)
        path = [kernel]
        moved = True
        while moved:
            moved = False
            for candidate in bits(ready):
                if late():
                    moved = False
                    break
                during, after = self.step(done, live, candidate)
                if during <= allowance and after <= live:
                    done, ready = self.advance(done, ready, candidate)
                    live = after
                    path.append(candidate)
                    moved = True
        return _Entry(peak, here.left - len(path), done, ready, live, here.done, tuple(path))

    def advance(self, done: int, ready: int, kernel: int) -> tuple[int, int]:
        """The finished and the ready kernels once a ready one has run."""
        done |= 1 << kernel
        ready &= ~(1 << kernel)
        for later in self.problem.after[kernel]:
            if not self.before[later] & ~done:
                ready |= 1 << later
        return done, ready
