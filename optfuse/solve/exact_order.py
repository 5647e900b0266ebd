"""The order of least peak, by best-first search over sets of finished kernels.

Which bytes are live after some kernels have run depends on which have run, not on their order. So the search walks
these sets, always onward from the one reached at the lowest peak; the first to reach the end is optimal, and the peak
of the set in hand is a lower bound on every order's peak at any time. A kernel that fits under the peak reached so far
and leaves no more bytes live than it found is run at once: doing so never raises another kernel's peak.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from optfuse.problem.legality import bits, mask_of
from optfuse.solve.memory import OrderProblem, floor_bytes, peak_bytes

MAX_STATES = 100_000


@dataclass(frozen=True, slots=True)
class OrderOutcome:
    """An order, its peak, and a lower bound on the peak of any order; they are equal exactly when it is optimal."""

    order: tuple[int, ...]
    peak: int
    bound: int

    @property
    def proven(self) -> bool:
        """Whether no order has a lower peak."""
        return self.peak == self.bound


def least_peak_order(
    problem: OrderProblem, start: Sequence[int], max_states: int = MAX_STATES, deadline: float | None = None
) -> OrderOutcome:
    """Improve on ``start``, a valid order. Stops with a bound after ``max_states`` sets or at the deadline."""
    start_peak = peak_bytes(problem, start)
    bound = floor_bytes(problem)
    if start_peak == bound:
        return OrderOutcome(tuple(start), start_peak, bound)
    states = _States(problem)
    goal = (1 << len(problem.before)) - 1
    heap = [_Entry(0, len(problem.before), 0, states.roots, states.at_start, -1, ())]
    reached: dict[int, _Entry] = {}
    while heap:
        here = heapq.heappop(heap)
        if here.done in reached:
            continue
        bound = max(bound, here.peak)
        reached[here.done] = here
        if here.done == goal:
            order = _walk_back(reached, goal)
            return OrderOutcome(order, peak_bytes(problem, order), bound)
        if len(reached) > max_states or (deadline is not None and time.monotonic() > deadline):
            return OrderOutcome(tuple(start), start_peak, bound)
        for kernel in bits(here.ready):
            during, after = states.step(here.done, here.live, kernel)
            peak = max(here.peak, during)
            if peak < start_peak:
                entry = states.run_free(here, kernel, peak, after, max(peak, bound))
                if entry.done not in reached:
                    heapq.heappush(heap, entry)
    return OrderOutcome(tuple(start), start_peak, start_peak)


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
        self.before = [mask_of(mine) for mine in problem.before]
        self.roots = mask_of(kernel for kernel, mine in enumerate(problem.before) if not mine)
        self.users = [mask_of(storage.users) for storage in problem.storages]
        self.of_kernel: list[list[int]] = [[] for _ in problem.before]
        for number, storage in enumerate(problem.storages):
            for user in storage.users:
                self.of_kernel[user].append(number)
        from_start = [storage for storage in problem.storages if storage.from_start]
        self.at_start = problem.base + sum(storage.bytes for storage in from_start)
        #: Live during the first kernel only: donated inputs that nobody uses.
        self.brief = sum(storage.bytes for storage in from_start if not storage.users and not storage.to_end)

    def step(self, done: int, live: int, kernel: int) -> tuple[int, int]:
        """Live bytes while a kernel runs, and after it."""
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

    def run_free(self, here: _Entry, kernel: int, peak: int, live: int, allowance: int) -> _Entry:
        """Run ``kernel``, then all that stay within ``allowance`` and do not add to what is live after them."""
        done, ready = self.advance(here.done, here.ready, kernel)
        path = [kernel]
        moved = True
        while moved:
            moved = False
            for candidate in bits(ready):
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
