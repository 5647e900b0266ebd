"""The cheapest schedule within a cap on live bytes: one joint model if the problem is small, else window by window.

A large problem starts from good schedules without the cap. Where one exceeds it, a window of kernels around that
position is optimized again, partition, order and recomputation together, within the cap; all before and after stays
fixed (``solver.joint.scope``). The window grows until that succeeds. Then windows are optimized for cost while there is
time. The bound is that of the problem without the cap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from optfuse.problem.cost import kernel_cost
from optfuse.problem.instance import Instance
from optfuse.problem.op_masks import bits, mask_of
from optfuse.problem.recompute import recomputable_ops
from optfuse.problem.solution import Kernel, Solution
from optfuse.solver.control.clock import WALL, Clock
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.joint.columns import Column, ColumnBuilder, ColumnPool, list_columns
from optfuse.solver.joint.feasible_columns import feasible_columns
from optfuse.solver.joint.joint import JointResult, solve_joint
from optfuse.solver.joint.op_groups import op_groups
from optfuse.solver.joint.scope import Scope, whole_scope, window_scope
from optfuse.solver.memory.order_problem import live_bytes, order_problem

#: A problem of at most so many ops and columns is one model.
WHOLE_OPS = 40
WHOLE_COLUMNS = 3000
#: Windows: kernels on either side of the position of the peak, and the most ops and columns.
WINDOW_RADII = (3, 6, 10, 16)
WINDOW_OPS = 60
WINDOW_COLUMNS = 1500
#: The percentages for ``op_groups``, tried in turn until all columns can be listed.
GROUPING_PERCENTS = (100, 70, 50, 30, 0)
#: The most recomputable ops of one window.
MOST_RECOMPUTED = 8
WINDOW_SECONDS = 6.0
#: Rough seconds to list a column, to examine a set of ops that may be one, to add a column's op to a model, and to
#: compute a schedule's lifetimes for each op.
COLUMN_SECONDS = 2e-4
SET_SECONDS = 1e-4
PLACE_SECONDS = 1e-4
LIVE_SECONDS = 3e-5
#: Rough seconds to cut a window out of a schedule, for each op of the whole.
WINDOW_CUT_SECONDS = 4e-5


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
    """The cheapest schedule found within ``instance.rules.peak_memory`` (None: any number of bytes).

    Args:
        starts: Schedules, each in its order of least peak; some may keep the cap.
        bound: A lower bound on every schedule's cost without the cap (with recomputation, if allowed).
        deadline: When to stop, a time of ``clock``.
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
            return _outcome_of_whole(work, found, bound, lowest)
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
    """The lowest peak found, and a bound on all peaks, at least ``floor``; they are equal when it is proven."""
    work = _Work(instance, floor, options, deadline, clock)
    lowest = min(start.peak_bytes for start in starts)
    if len(instance.ops) <= WHOLE_OPS:
        found = work.whole(starts, least_peak=True)
        if found is not None and found.columns is not None:
            kernels = tuple(column.kernel for column in found.columns)
            return min(lowest, work.peak(kernels)), max(floor, found.bound)
    for start in sorted(starts, key=lambda s: s.peak_bytes):
        if lowest > floor and clock.now() < deadline:
            lowest = min(lowest, work.repaired(start.kernels)[1])
    return lowest, floor


def _outcome_of_whole(work: _Work, found: JointResult, bound: int, lowest: int) -> CappedOutcome:
    if found.columns is None:
        return CappedOutcome(None, bound, lowest, infeasible=True)
    kernels = tuple(column.kernel for column in found.columns)
    return CappedOutcome(kernels, max(bound, found.bound), work.peak(kernels))


class _Work:
    """The state of the search: instance, cap, options and clock."""

    def __init__(self, instance: Instance, cap: int, options: SolveOptions, deadline: float, clock: Clock) -> None:
        self.instance, self.cap, self.options, self.deadline, self.clock = instance, cap, options, deadline, clock
        self.recomputable = recomputable_ops(instance) if options.recompute else 0
        self.builder = ColumnBuilder(instance)

    def cost(self, kernels: Sequence[Kernel]) -> int:
        return sum(kernel_cost(self.instance, k.ops, k.scheme, k.writes) for k in kernels)

    def live(self, kernels: Sequence[Kernel]) -> list[int]:
        self.clock.spend(LIVE_SECONDS * len(self.instance.ops))
        return live_bytes(order_problem(self.instance, kernels), range(len(kernels)))

    def peak(self, kernels: Sequence[Kernel]) -> int:
        return max(self.live(kernels))

    def has_time(self) -> bool:
        """Whether there is time for another window."""
        cutting = 0.0 if self.clock.deterministic else WINDOW_CUT_SECONDS * len(self.instance.ops)
        return self.clock.now() + cutting < self.deadline

    def within(self, share: float) -> float:
        """The moment at which a share of the time left is over, and no more than ``WINDOW_SECONDS`` from now."""
        now = self.clock.now()
        return now + min(WINDOW_SECONDS, share * max(0.0, self.deadline - now))

    def list(self, scope: Scope, limit: int, groups: Mapping[int, int] | None) -> ColumnPool:
        """The columns of a scope; a deterministic solve limits them by counts alone."""
        deadline, steps = self.within(0.2), None
        if self.clock.deterministic:
            deadline, steps = None, max(1, int((self.within(0.2) - self.clock.now()) / SET_SECONDS))
        pool = list_columns(self.instance, scope.ops, scope.recomputable, limit, deadline, groups, steps, self.clock)
        self.clock.spend(COLUMN_SECONDS * len(pool.columns) + SET_SECONDS * pool.steps)
        return pool

    def whole(self, starts: Sequence[Solution], *, least_peak: bool = False) -> JointResult | None:
        """The result of one joint model of the whole problem; None if that is too large. ``least_peak``: no cap."""
        scope = whole_scope(self.instance, recompute=self.options.recompute)
        cap = None if least_peak else self.cap
        if cap is not None and scope.base > cap:
            return JointResult(None, 0, proven=False, infeasible=True)
        pool = self.list(scope, WHOLE_COLUMNS, None)
        if not pool.complete:
            return None
        columns = feasible_columns(scope, pool.columns, cap)
        start = min(starts, key=lambda s: (max(0, s.peak_bytes - self.cap), s.objective))
        hints = [self.builder.column(k.ops, k.scheme, k.writes) for k in start.kernels]
        self.clock.spend(PLACE_SECONDS * sum(column.mask.bit_count() for column in columns))
        return solve_joint(
            scope, columns, self.options, self.deadline, self.clock, cap=cap, least_peak=least_peak, start=hints
        )

    def repaired(self, kernels: tuple[Kernel, ...]) -> tuple[tuple[Kernel, ...], int]:
        """The kernels, optimized in windows around the peak until the cap is kept or nothing helps; and the peak."""
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
        """The schedule with fewer bytes live at its peak; None if none is found."""
        at = live.index(max(live))
        last: tuple[int, int] | None = None
        for first, end in self._windows(kernels, at):
            found = self._reoptimized(kernels, first, end, live, least_peak=False)
            if found is not None:
                return found
            last = (first, end)
        return None if last is None else self._reoptimized(kernels, *last, live, least_peak=True)

    def _windows(self, kernels: Sequence[Kernel], at: int) -> Iterator[tuple[int, int]]:
        """Ever larger windows around a position, as (first, end)."""
        before = (0, 0)
        for reach in WINDOW_RADII:
            first, end = max(0, at - reach), min(len(kernels), at + reach + 1)
            while sum(len(k.ops) for k in kernels[first:end]) > WINDOW_OPS and end - first > 1:
                first, end = (first + 1, end) if at - first >= end - 1 - at else (first, end - 1)
            if (first, end) != before and self.clock.now() < self.deadline:
                yield first, end
            before = (first, end)

    def _reoptimized(
        self, kernels: tuple[Kernel, ...], first: int, end: int, live: Sequence[int], *, least_peak: bool
    ) -> tuple[Kernel, ...] | None:
        """The schedule with a window optimized again, within the cap or with a lower peak; None if there is none."""
        scope = self._scope(kernels, first, end)
        highest = max(live[first:end])
        cap = highest - 1 if least_peak else self.cap
        if scope.base > cap:
            return None
        old = [self.builder.column(k.ops, k.scheme, k.writes) for k in kernels[first:end]]
        listed = {(column.mask, column.writes, column.loads): column for column in (*self._columns(scope), *old)}
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
        changed = (*kernels[:first], *(column.kernel for column in found.columns), *kernels[end:])
        return without_idle(self.instance, changed) if self.recomputable else changed

    def _columns(self, scope: Scope) -> tuple[Column, ...]:
        """The columns of a window, with ops grouped until all can be listed."""
        columns: tuple[Column, ...] = ()
        for percent in GROUPING_PERCENTS:
            groups = op_groups(scope, percent)
            pool = self.list(scope, WINDOW_COLUMNS, groups)
            columns = pool.columns
            if pool.complete:
                break
        return columns

    def _scope(self, kernels: Sequence[Kernel], first: int, end: int) -> Scope:
        """The scope of a window, with the ops that are recomputed already and those with the largest values."""
        if not self.recomputable:
            return window_scope(self.instance, kernels, first, end)
        seen = twice = 0
        for kernel in kernels:
            twice |= seen & mask_of(kernel.ops)
            seen |= mask_of(kernel.ops)
        worth: dict[int, int] = {}
        for kernel in kernels[first:end]:
            for buffer in (*self.builder.loads(mask_of(kernel.ops), kernel.scheme), *kernel.writes):
                for op in bits(self._makers.get(buffer, 0) & self.recomputable):
                    worth[op] = max(worth.get(op, 0), self.instance.buffers[buffer].bytes)
        most = sorted(worth, key=lambda op: (-worth[op], op))[:MOST_RECOMPUTED]
        return window_scope(self.instance, kernels, first, end, twice | mask_of(most))

    @property
    def _makers(self) -> dict[int, int]:
        producers: dict[int, int] = {}
        for op, offers in enumerate(self.builder.index.offers):
            for offer in offers.values():
                for write in offer.writes:
                    producers[write.buffer] = producers.get(write.buffer, 0) | 1 << op
        return producers

    def improved(self, kernels: tuple[Kernel, ...], bound: int) -> tuple[Kernel, ...]:
        """The schedule after windows are optimized for cost, the fullest first, until none improves or time is up."""
        reach = WINDOW_RADII[1]
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
                while sum(len(k.ops) for k in kernels[at:end]) > WINDOW_OPS and end - at > 1:
                    end -= 1
                found = self._reoptimized(kernels, at, end, live, least_peak=False)
                kernels = kernels if found is None else found
            if self.cost(kernels) == before:
                break
        return kernels


def without_idle(instance: Instance, kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """The kernels without those that only recompute other kernels' ops and write nothing that is loaded."""
    builder = ColumnBuilder(instance)
    while True:
        runs = Counter(op for kernel in kernels for op in kernel.ops)
        loads = [set(builder.loads(mask_of(kernel.ops), kernel.scheme)) for kernel in kernels]
        for position, kernel in enumerate(kernels):
            wanted = set[int]().union(*loads[:position], *loads[position + 1 :])
            required_writes = any(instance.buffers[buffer].output or buffer in wanted for buffer in kernel.writes)
            if not required_writes and all(runs[op] > 1 for op in kernel.ops):
                kernels = (*kernels[:position], *kernels[position + 1 :])
                break
        else:
            return kernels
