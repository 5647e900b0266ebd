"""The cheapest schedule within a cap on live bytes: one joint model of a small problem, stretch by stretch otherwise.

A large problem starts from good schedules without the cap. Where one exceeds it, the kernels around that moment are
decided anew, partition, order and copies together, as cheap as can be within the cap: all before and after stays
(``solver.joint.scope``). The stretch grows until that succeeds. Afterwards stretches are decided anew for cost alone,
as long as there is time. Bounds come from elsewhere: what is cheapest without the cap is a bound with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from optfuse.problem.cost import kernel_cost
from optfuse.problem.instance import Instance
from optfuse.problem.legality import bits, mask_of
from optfuse.problem.recompute import copyable
from optfuse.problem.solution import Kernel, Solution
from optfuse.solver.control.clock import WALL, Clock
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.joint.available import feasible_columns
from optfuse.solver.joint.columns import Column, ColumnMaker, ColumnPool, list_columns
from optfuse.solver.joint.joint import JointResult, solve_joint
from optfuse.solver.joint.rematerialise import copy_to_shrink, without_idle
from optfuse.solver.joint.scope import Scope, stretch, whole_scope
from optfuse.solver.joint.ties import ties
from optfuse.solver.memory.order_problem import live_bytes, order_problem

#: A problem of at most so many ops and columns is one model.
WHOLE_OPS = 40
WHOLE_COLUMNS = 3000
#: Kernels on either side of the fullest moment, and ops and columns, of the stretches decided anew.
REACHES = (3, 6, 10, 16)
STRETCH_OPS = 60
STRETCH_COLUMNS = 1500
#: How readily ops of a stretch are tied together: more and more, until the columns are few enough to list.
TIES = (100, 70, 50, 30, 0)
#: Copyable ops of one stretch.
MOST_COPIES = 8
STRETCH_SECONDS = 6.0
#: About what it takes to list a column, to look at a set of ops that may be one, and to state a column's op in a model;
#: and to look at the lifetimes of a schedule, for each op.
COLUMN_SECONDS = 2e-4
SET_SECONDS = 1e-4
PLACE_SECONDS = 1e-4
LIVE_SECONDS = 3e-5
#: What it takes to cut a stretch out of a schedule, for each op of the whole, roughly.
STRETCH_OP_SECONDS = 4e-5


@dataclass(frozen=True, slots=True)
class CappedOutcome:
    """``kernels`` in order, or None when no schedule within the cap was found.

    ``lowest`` is the lowest peak seen; ``infeasible``: no schedule keeps the cap, proven. ``bound`` is on the cost of
    all schedules that do.
    """

    kernels: tuple[Kernel, ...] | None
    bound: int
    lowest: int
    infeasible: bool = False
    given_up: tuple[str, ...] = ()


def solve_capped(
    instance: Instance,
    starts: Sequence[Solution],
    bound: int,
    options: SolveOptions,
    deadline: float,
    clock: Clock = WALL,
) -> CappedOutcome:
    """Look for the cheapest schedule within ``instance.rules.peak_memory`` (None: any number of bytes).

    Parameters
    ----------
    starts
        Schedules, each in its order of least peak; some may keep the cap.
    bound
        A lower bound on every schedule's cost, cap or no cap (copies included, if they are allowed).
    deadline
        When to stop, a time of ``clock``.
    """
    cap = instance.rules.peak_memory
    if cap is None:
        cap = sum(buffer.bytes for buffer in instance.buffers)
    work = _Work(instance, cap, options, deadline, clock)
    lowest = min(start.peak_bytes for start in starts)
    fitting = sorted((s for s in starts if s.peak_bytes <= cap), key=lambda s: s.objective)
    best = fitting[0].kernels if fitting else None
    if len(instance.ops) <= WHOLE_OPS:
        found = work.whole(starts)
        if found is not None and (found.proven or found.infeasible):
            return _of_whole(work, found, bound, lowest)
    for start in sorted(starts, key=lambda s: s.objective):
        if clock.now() >= deadline or (best is not None and work.cost(best) <= start.objective):
            break
        kernels, peak = work.repaired(start.kernels)
        lowest = min(lowest, peak)
        if peak <= cap and (best is None or work.cost(kernels) < work.cost(best)):
            best = kernels
    if best is not None and clock.now() < deadline:
        best = work.improved(best, bound)
    return CappedOutcome(best, bound, lowest)


def least_peak(
    instance: Instance,
    starts: Sequence[Solution],
    floor: int,
    options: SolveOptions,
    deadline: float,
    clock: Clock = WALL,
) -> tuple[int, int]:
    """The lowest peak that can be found, and a bound on all: equal when it is proven. ``floor`` is known already."""
    work = _Work(instance, floor, options, deadline, clock)
    lowest = min(start.peak_bytes for start in starts)
    if len(instance.ops) <= WHOLE_OPS:
        found = work.whole(starts, least_peak=True)
        if found is not None and found.columns is not None:
            kernels = tuple(Kernel(column.ops, column.scheme, column.writes) for column in found.columns)
            return min(lowest, work.peak(kernels)), max(floor, found.bound)
    for start in sorted(starts, key=lambda s: s.peak_bytes):
        if lowest > floor and clock.now() < deadline:
            lowest = min(lowest, work.repaired(start.kernels)[1])
    return lowest, floor


def _of_whole(work: _Work, found: JointResult, bound: int, lowest: int) -> CappedOutcome:
    if found.columns is None:
        return CappedOutcome(None, bound, lowest, infeasible=True)
    kernels = tuple(Kernel(column.ops, column.scheme, column.writes) for column in found.columns)
    return CappedOutcome(kernels, max(bound, found.bound), work.peak(kernels))


class _Work:
    """What every step needs."""

    def __init__(self, instance: Instance, cap: int, options: SolveOptions, deadline: float, clock: Clock) -> None:
        self.instance, self.cap, self.options, self.deadline, self.clock = instance, cap, options, deadline, clock
        self.copyable = copyable(instance) if options.recompute else 0
        self.maker = ColumnMaker(instance)

    def cost(self, kernels: Sequence[Kernel]) -> int:
        return sum(kernel_cost(self.instance, k.ops, k.scheme, k.writes) for k in kernels)

    def live(self, kernels: Sequence[Kernel]) -> list[int]:
        self.clock.spend(LIVE_SECONDS * len(self.instance.ops))
        return live_bytes(order_problem(self.instance, kernels), range(len(kernels)))

    def peak(self, kernels: Sequence[Kernel]) -> int:
        return max(self.live(kernels))

    def has_time(self) -> bool:
        """Whether there is time for another stretch; where answers must repeat, work is what counts."""
        cutting = 0.0 if self.clock.deterministic else STRETCH_OP_SECONDS * len(self.instance.ops)
        return self.clock.now() + cutting < self.deadline

    def within(self, share: float) -> float:
        """The moment at which a share of the time left is over, and no more than ``STRETCH_SECONDS`` from now."""
        now = self.clock.now()
        return now + min(STRETCH_SECONDS, share * max(0.0, self.deadline - now))

    def list(self, scope: Scope, limit: int, tied: Mapping[int, int] | None) -> ColumnPool:
        """The columns of a scope; where answers must repeat, limited by counts alone."""
        deadline, steps = self.within(0.2), None
        if self.clock.deterministic:
            deadline, steps = None, max(1, int((self.within(0.2) - self.clock.now()) / SET_SECONDS))
        pool = list_columns(self.instance, scope.ops, scope.copies, limit, deadline, tied, steps, self.clock)
        self.clock.spend(COLUMN_SECONDS * len(pool.columns) + SET_SECONDS * pool.steps)
        return pool

    def whole(self, starts: Sequence[Solution], *, least_peak: bool = False) -> JointResult | None:
        """The joint model of everything; None when it would be too large. With ``least_peak`` there is no cap."""
        scope = whole_scope(self.instance, recompute=self.options.recompute)
        cap = None if least_peak else self.cap
        if cap is not None and scope.base > cap:
            return JointResult(None, 0, proven=False, infeasible=True)
        pool = self.list(scope, WHOLE_COLUMNS, None)
        if not pool.complete:
            return None
        columns = feasible_columns(scope, pool.columns, cap)
        start = min(starts, key=lambda s: (max(0, s.peak_bytes - self.cap), s.objective))
        hints = [self.maker.column(k.ops, k.scheme, k.writes) for k in start.kernels]
        self.clock.spend(PLACE_SECONDS * sum(column.mask.bit_count() for column in columns))
        return solve_joint(
            scope, columns, self.options, self.deadline, self.clock, cap=cap, least_peak=least_peak, start=hints
        )

    def repaired(self, kernels: tuple[Kernel, ...]) -> tuple[tuple[Kernel, ...], int]:
        """Decide stretches around the fullest moments anew until the cap is kept, or nothing helps; and the peak."""
        while True:
            live = self.live(kernels)
            peak = max(live)
            if peak <= self.cap or self.clock.now() >= self.deadline:
                return kernels, peak
            better = self._lowered(kernels, live)
            if better is None:
                return kernels, peak
            kernels = better

    def _lowered(self, kernels: tuple[Kernel, ...], live: list[int]) -> tuple[Kernel, ...] | None:
        """The schedule with less live at its fullest moment; None if no way is found."""
        at = live.index(max(live))
        last: tuple[int, int] | None = None
        for first, end in self._stretches(kernels, at):
            found = self._anew(kernels, first, end, live, least_peak=False)
            if found is not None:
                return found
            last = (first, end)
        if self.copyable:
            found = copy_to_shrink(self.instance, kernels, at, self.copyable)
            if found is not None:
                return found
        return None if last is None else self._anew(kernels, *last, live, least_peak=True)

    def _stretches(self, kernels: Sequence[Kernel], at: int) -> Iterator[tuple[int, int]]:
        """Ever longer stretches around a position."""
        before = (0, 0)
        for reach in REACHES:
            first, end = max(0, at - reach), min(len(kernels), at + reach + 1)
            while sum(len(k.ops) for k in kernels[first:end]) > STRETCH_OPS and end - first > 1:
                first, end = (first + 1, end) if at - first >= end - 1 - at else (first, end - 1)
            if (first, end) != before and self.clock.now() < self.deadline:
                yield first, end
            before = (first, end)

    def _anew(
        self, kernels: tuple[Kernel, ...], first: int, end: int, live: Sequence[int], *, least_peak: bool
    ) -> tuple[Kernel, ...] | None:
        """A stretch decided anew: within the cap, or at least lower; None if that cannot be."""
        scope = self._scope(kernels, first, end, live)
        highest = max(live[first:end])
        cap = highest - 1 if least_peak else self.cap
        if scope.base > cap:
            return None
        old = [self.maker.column(k.ops, k.scheme, k.writes) for k in kernels[first:end]]
        listed = {(column.mask, column.writes, column.takes): column for column in (*self._columns(scope), *old)}
        columns = feasible_columns(scope, listed.values(), cap)
        at_most = None
        if highest <= self.cap:
            at_most = sum(column.cost for column in old) - 1
        self.clock.spend(PLACE_SECONDS * sum(column.mask.bit_count() for column in columns))
        found = solve_joint(
            scope,
            columns,
            self.options,
            self.within(0.3),
            self.clock,
            cap=cap,
            least_peak=least_peak,
            start=old,
            at_most=at_most,
        )
        if found.columns is None:
            return None
        new = tuple(Kernel(column.ops, column.scheme, column.writes) for column in found.columns)
        anew = (*kernels[:first], *new, *kernels[end:])
        return without_idle(self.instance, anew) if self.copyable else anew

    def _columns(self, scope: Scope) -> tuple[Column, ...]:
        """The columns of a stretch, with ops tied together until there are few enough."""
        columns: tuple[Column, ...] = ()
        for percent in TIES:
            tied = ties(scope, percent)
            pool = self.list(scope, STRETCH_COLUMNS, tied)
            columns = pool.columns
            if pool.complete:
                break
        return columns

    def _scope(self, kernels: Sequence[Kernel], first: int, end: int, live: Sequence[int]) -> Scope:
        """The scope of a stretch, with the ops that are copied already and those whose values take most room."""
        if not self.copyable:
            return stretch(self.instance, kernels, first, end)
        seen = twice = 0
        for kernel in kernels:
            twice |= seen & mask_of(kernel.ops)
            seen |= mask_of(kernel.ops)
        worth: dict[int, int] = {}
        for kernel in kernels[first:end]:
            for buffer in (*self.maker.takes(mask_of(kernel.ops), kernel.scheme), *kernel.writes):
                for op in bits(self._makers.get(buffer, 0) & self.copyable):
                    worth[op] = max(worth.get(op, 0), self.instance.buffers[buffer].bytes)
        del live
        most = sorted(worth, key=lambda op: (-worth[op], op))[:MOST_COPIES]
        return stretch(self.instance, kernels, first, end, twice | mask_of(most))

    @property
    def _makers(self) -> dict[int, int]:
        makers: dict[int, int] = {}
        for op, offers in enumerate(self.maker.index.offers):
            for offer in offers.values():
                for write in offer.writes:
                    makers[write.buffer] = makers.get(write.buffer, 0) | 1 << op
        return makers

    def improved(self, kernels: tuple[Kernel, ...], bound: int) -> tuple[Kernel, ...]:
        """Decide stretches anew for cost alone, the fullest moments first, until none gets cheaper or time is up."""
        reach = REACHES[1]
        step = 2 * reach
        while self.cost(kernels) > bound and self.has_time():
            before = self.cost(kernels)
            live = self.live(kernels)
            centres = sorted(range(0, len(kernels), reach), key=lambda at: -max(live[at : at + step]))
            for at in centres:
                if not self.has_time():
                    break
                live = self.live(kernels)
                if at >= len(kernels):
                    continue
                end = min(len(kernels), at + step)
                while sum(len(k.ops) for k in kernels[at:end]) > STRETCH_OPS and end - at > 1:
                    end -= 1
                found = self._anew(kernels, at, end, live, least_peak=False)
                kernels = kernels if found is None else found
            if self.cost(kernels) == before:
                break
        return kernels
