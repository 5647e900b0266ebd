"""``within_cap``: the cheapest schedule found within the cap on live bytes, or a proof of infeasibility."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from optfuse.errors import InfeasibleError
from optfuse.problem.instance import Instance
from optfuse.problem.solution import Kernel, Solution
from optfuse.solver.control.clock import WALL, Clock, within
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.joint.peak_bound import CUT_SECONDS_PER_OP, least_peak_bound
from optfuse.solver.memory.assemble import arrange
from optfuse.solver.memory.order_problem import HEURISTICS, OrderProblem, order_problem, peak_bytes
from optfuse.solver.memory.order_search import STEP_SECONDS, least_peak_order

MIB = 1 << 20
#: Seconds for the order of one schedule to start from.
ORDER_SECONDS = 1.0
#: The least seconds to order a schedule, for each op, roughly.
START_SECONDS = 4e-5


@dataclass(frozen=True, slots=True)
class Capped:
    """A solution within the cap, and a bound on the cost of all such solutions."""

    solution: Solution
    bound: int
    given_up: tuple[str, ...] = ()


def within_cap(
    instance: Instance,
    solutions: Iterable[Solution],
    bound: int,
    options: SolveOptions,
    deadline: float,
    clock: Clock = WALL,
) -> Capped:
    """The cheapest schedule that can be found within ``instance.rules.peak_memory`` (None: any number of bytes).

    Args:
        solutions: Schedules to start from, which need not keep the cap.
        bound: A lower bound on every schedule's cost without the cap.

    Raises:
        InfeasibleError: When none keeps the cap, or none was found that does: the message says which, and what the
            least is.
    """
    cap = instance.rules.peak_memory
    floor = _floor(instance, options, within(clock, deadline, 0.1), clock)
    starts = [_ordered(instance, solution, deadline, clock) for solution in _distinct(solutions)]
    lowest, impossible = min(start.peak_bytes for start in starts), cap is not None and floor > cap
    too_late = clock.now() >= deadline and (clock.stopped or not clock.deterministic)
    if options.solver == "cpsat" and not too_late:
        from optfuse.solver.joint.memory_cap_search import least_peak, solve_capped

        if not impossible:
            found = solve_capped(instance, starts, bound, options, within(clock, deadline, 0.9), clock)
            if found.kernels is not None:
                as_it_was = (start for start in starts if start.kernels is found.kernels)
                solution = next(as_it_was, None) or in_order(instance, found.kernels)
                return Capped(solution, max(bound, found.bound), found.given_up)
            lowest, impossible = found.lowest, found.infeasible
        seen, floor = least_peak(instance, starts, floor, options, deadline, clock)
        lowest = min(lowest, seen)
    else:
        fitting = [start for start in starts if cap is None or start.peak_bytes <= cap]
        if fitting:
            return Capped(min(fitting, key=lambda start: start.objective), bound)
    raise InfeasibleError(_infeasible(instance, cap or 0, lowest, floor, impossible=impossible), proven=impossible)


def in_order(instance: Instance, kernels: Sequence[Kernel]) -> Solution:
    """The solution that runs kernels as they are given."""
    return arrange(instance, kernels, order_problem(instance, kernels), range(len(kernels)))


def _best_start(problem: OrderProblem, kernels: int, deadline: float | None, clock: Clock) -> list[int]:
    """The given order, or that of a heuristic if it has a lower peak."""
    orders: list[list[int]] = []
    if all(earlier < kernel for kernel, mine in enumerate(problem.before) for earlier in mine):
        orders.append(list(range(kernels)))
    for heuristic in HEURISTICS:
        if not orders or deadline is None or clock.now() < deadline:
            orders.append(heuristic(problem))
    return min(orders, key=lambda order: peak_bytes(problem, order))


def _floor(instance: Instance, options: SolveOptions, deadline: float, clock: Clock) -> int:
    """A bound on the peak of all schedules; a deterministic solve limits it by a number of cuts."""
    seconds = max(0.0, deadline - clock.now())
    if not clock.deterministic:
        if instance.rules.peak_memory is None:
            return 0  # nothing asks for it
        return least_peak_bound(instance, recompute=options.recompute, deadline=deadline, clock=clock)
    each = CUT_SECONDS_PER_OP * len(instance.ops)
    looks = max(1, int(seconds / each))
    clock.spend(each * min(looks, len(instance.ops)))
    return least_peak_bound(instance, recompute=options.recompute, looks=looks)


def _ordered(instance: Instance, solution: Solution, deadline: float, clock: Clock) -> Solution:
    """The solution in the order of least peak found in about a second; unchanged when there is no time.

    A deterministic solve counts steps instead.
    """
    if clock.stopped or not (clock.deterministic or clock.now() + START_SECONDS * len(instance.ops) < deadline):
        return solution
    problem = order_problem(instance, solution.kernels)
    seconds = min(ORDER_SECONDS, max(0.0, within(clock, deadline, 0.1) - clock.now()))
    until = None if clock.deterministic else clock.now() + seconds
    start = _best_start(problem, len(solution.kernels), until, clock)
    steps = max(1, int(seconds / STEP_SECONDS)) if clock.deterministic else None
    found = least_peak_order(problem, start, deadline=until, max_steps=steps, clock=WALL if steps else clock)
    clock.spend(STEP_SECONDS * found.steps)
    return in_order(instance, [solution.kernels[number] for number in found.order])


def _distinct(solutions: Iterable[Solution]) -> list[Solution]:
    found: dict[frozenset[tuple[tuple[int, ...], int]], Solution] = {}
    for solution in solutions:
        found.setdefault(frozenset((kernel.ops, kernel.scheme) for kernel in solution.kernels), solution)
    return list(found.values())


def _infeasible(instance: Instance, cap: int, lowest: int, floor: int, *, impossible: bool) -> str:
    said = f"instance {instance.name!r}: "
    if impossible:
        said += f"no schedule keeps peak_memory of {_bytes(cap)}, proven; "
    else:
        said += f"no schedule was found within peak_memory of {_bytes(cap)}; "
    if lowest == floor:
        return said + f"the least that can be met is {_bytes(lowest)}, proven; raise the cap to that"
    return said + f"the lowest found needs {_bytes(lowest)}, and none needs less than {_bytes(floor)}; raise the cap"


def _bytes(size: int) -> str:
    return f"{size} bytes ({size / MIB:,.1f} MiB)"
