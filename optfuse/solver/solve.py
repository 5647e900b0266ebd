"""``solve``: greedy fusion, search, order and memory plan, in this order; the answer comes with a proven bound."""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, TypeVar

from optfuse.errors import InvalidInstanceError, InvalidOptionError
from optfuse.problem.garbage_collection import rarely_collecting
from optfuse.problem.instance import Instance
from optfuse.problem.serialize import digest
from optfuse.problem.solution import Solution
from optfuse.problem.validate import validate
from optfuse.solver.baseline.answer_check import checked_or_unfused, unfused
from optfuse.solver.baseline.exhaustive import exhaustive
from optfuse.solver.baseline.greedy import GreedyOutcome, greedy_partition
from optfuse.solver.bounds.cost_bound import cost_bound
from optfuse.solver.control.clock import NEVER, Clock, WorkClock, within
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.control.progress import Journal, OnProgress, relative_gap
from optfuse.solver.final_plan import Plan, planned
from optfuse.solver.joint.memory_cap import Capped, within_cap
from optfuse.solver.memory.assemble import assemble
from optfuse.solver.memory.launches import may_share
from optfuse.solver.overlap.overlap import transfers
from optfuse.solver.result import SolveResult, Statistics, installed
from optfuse.solver.rules.conflict import under_rules

T = TypeVar("T")

#: The time kept for the order and the offsets: a share of what is left after greedy, at most so many seconds an op (but
#: half a second at least). When the search ends sooner they take at most ORDER_MAX_S, or a share of the time limit.
ORDER_SHARE = 0.2
ORDER_LEAST_S, ORDER_SECONDS = 0.5, 5e-4
ORDER_MAX_S = 5.0
ORDER_MAX_SHARE = 0.1
#: The share kept for the joint model of partition, order, recomputation and memory cap, and all after it.
JOINT_SHARE = 0.6
#: The share of the search's time kept for a bound on schedules whose kernels share launches.
SHARING_SHARE = 0.25
#: Rough seconds of a careful arena packing for each kernel, and the share of the time left that greedy's may take.
PACK_SECONDS = 1e-4
PACK_SHARE = 0.2
#: Rough seconds for each op: of the bound without search, and of the unfused schedule.
FLOOR_SECONDS = 5e-5
UNFUSED_SECONDS = 1e-4

#: Sums of prices stay whole in the floating point of linear relaxations, and far inside of CP-SAT's 64 bits.
LARGEST_OBJECTIVE = 1 << 52


@rarely_collecting()
def solve(
    instance: Instance,
    options: SolveOptions | Mapping[str, Any] | None = None,
    *,
    on_progress: OnProgress | None = None,
    stop: threading.Event | None = None,
) -> SolveResult:
    """The best schedule found within the time limit, and a true bound on every schedule's cost under the model.

    Never worse than greedy. The answer and greedy's are judged by the checker before they are returned.

    Args:
        instance: The problem.
        options: The time limit and the rest; ``SolveOptions()`` if not given.
        on_progress: Called with a ``Progress`` whenever the objective falls or the bound rises. What it raises ends
            the solve.
        stop: When it is set, by another thread or a signal handler, the solve wraps up and returns what it has. So it
            does on a KeyboardInterrupt, if ``options.interruptible``; a second one is not caught.

    Raises:
        InvalidInstanceError: When the instance breaks its own format.
        RuleError: When a rule matches no op.
        RuleConflictError: When no schedule obeys the rules; names the smallest set that conflicts.
        IllegalKernelError: When that was not decided in time.
        InfeasibleError: When no schedule keeps the memory cap, or none was found that does: the message says which, and
            what the least is that can be met.
        InvalidOptionError: When the exhaustive solver is asked to take a large instance.
    """
    options = SolveOptions.of(options)
    clock = (WorkClock if options.deterministic else Clock)(stop, interruptible=options.interruptible)
    _guarded(clock, lambda: _load_search(options, clock), lambda: None)
    journal, moments = Journal(on_progress), [time.monotonic()]
    stated, instance = _stated(instance, options)
    _guarded(clock, lambda: digest(stated))
    deadline = clock.now() + options.time_limit  # reading a problem and naming it is not solving it
    context = _Context(instance, options, clock, journal)

    partition = _guarded(clock, lambda: _greedy(context, deadline))
    moments.append(time.monotonic())
    greedy_solution, refused = _guarded(clock, lambda: _first_solution(context, partition, deadline))
    # The answer must be assembled and checked too, and packed with more care.
    finish_by = deadline if clock.deterministic else deadline - 2 * (time.monotonic() - moments[-1])
    floor = _guarded(clock, lambda: _floor(context, deadline))
    search, shared_bound = _searched(context, greedy_solution, floor, finish_by)
    moments.append(time.monotonic())
    best = _best_of(context, search, greedy_solution, floor, finish_by)
    plan = _bounded(_planned(context, best.solution, greedy_solution, finish_by), shared_bound)

    given_up = _given_up(partition, refused, search, best, plan, clock)
    # A search whose answer the checker refused has proven nothing.
    bound = min(floor if plan.refused else best.bound, plan.solution.objective)
    journal.note("done", plan.solution.objective, bound)
    statistics = _timed(search.statistics, moments, plan, given_up, context)
    return _result(stated, options, plan.solution, greedy_solution, bound, statistics)


@dataclass(frozen=True, slots=True)
class _Context:
    """The instance, options, clock and journal of a solve."""

    instance: Instance
    options: SolveOptions
    clock: Clock
    journal: Journal


def _load_search(options: SolveOptions, clock: Clock) -> None:
    """Import the search before the time limit begins: importing ortools takes one to three seconds."""
    if options.solver == "cpsat" and not clock.stopped:
        import_module("optfuse.solver.solve_blocks")


def _stated(instance: Instance, options: SolveOptions) -> tuple[Instance, Instance]:
    """The instance under the caller's rules, whose digest the solution carries; and the same under the caller's cap."""
    stated = under_rules(instance, options.rules)
    validate(stated)
    capped = _with_cap(stated, options.peak_bytes)
    if capped.rules.peak_memory is not None and options.order == "program":
        raise InvalidOptionError("a cap on peak memory decides the order too: leave order at 'memory'")
    return stated, capped


def _is_joint(context: _Context) -> bool:
    """Whether partition, order and recomputation are decided together, after the search."""
    return context.instance.rules.peak_memory is not None or context.options.recompute


def _first_solution(context: _Context, partition: GreedyOutcome, deadline: float) -> tuple[Solution, str]:
    """Greedy's schedule, checked but for the memory cap, and the reason if it was refused."""
    instance, clock = context.instance, context.clock
    careful = PACK_SECONDS * len(partition.partition) <= PACK_SHARE * (deadline - clock.now())
    solution = assemble(instance, partition.partition, hurried=not careful)
    _require_exact_sums(instance, solution)
    return checked_or_unfused(instance, solution, "greedy", ignore_cap=True)


def _searched(context: _Context, greedy_solution: Solution, floor: int, finish_by: float) -> tuple[_Found, int]:
    """The outcome of the search, and a bound on schedules that share launches; 0 if they will hardly be shared."""
    clock, sharing = context.clock, _may_share(context, greedy_solution)
    search_by = _search_by(context, finish_by, joint=_is_joint(context))
    search = _guarded(
        clock,
        lambda: _search(context, greedy_solution, floor, within(clock, search_by, 1 - SHARING_SHARE * sharing)),
        lambda: _Found((), floor, Statistics()),
    )
    starts = (*search.solutions, greedy_solution)
    return search, _guarded(clock, lambda: _sharing_bound(context, starts, search_by) if sharing else 0, lambda: 0)


def _given_up(
    partition: GreedyOutcome, refused: str, search: _Found, best: Capped, plan: Plan, clock: Clock
) -> tuple[str, ...]:
    """What the steps of a solve left undone, in their order."""
    greedy = [] if partition.complete else ["greedy: stopped before its rounds were over"]
    stopped = ["stopped before the end, as asked"] if clock.stopped else []
    return (*greedy, *([refused] if refused else []), *search.given_up, *best.given_up, *plan.given_up, *stopped)


def _best_of(context: _Context, search: _Found, greedy_solution: Solution, floor: int, finish_by: float) -> Capped:
    """The cheapest schedule; under a memory cap or with recomputation the joint model's, started from them all."""
    if not _is_joint(context):
        solution = min((*search.solutions, greedy_solution), key=lambda solution: solution.objective)
        return Capped(solution, search.bound)
    bound = search.bound
    if context.options.recompute and context.options.solver != "exhaustive":
        bound = floor  # recomputation may be cheaper than the bound of a search without it
    starts = (*search.solutions, greedy_solution)
    return _guarded(context.clock, lambda: _jointly(context, starts, bound, finish_by))


def _may_share(context: _Context, greedy_solution: Solution) -> bool:
    """Whether launches will likely be shared, so that it is worth to search for a bound on that."""
    options = context.options
    asked = options.share_launches and options.order == "memory" and options.solver == "cpsat"
    open_to_it = asked and not _is_joint(context) and not transfers(context.instance)
    return open_to_it and may_share(context.instance, greedy_solution)


def _sharing_bound(context: _Context, starts: tuple[Solution, ...], deadline: float) -> int:
    """A bound on all schedules, whichever kernels share launches; 0 without time for a search."""
    if context.clock.now() >= deadline:
        return 0
    from optfuse.solver.sharing_relaxation import sharing_bound

    start = min(starts, key=lambda solution: solution.objective)
    return sharing_bound(context.instance, start, context.options, deadline, context.clock)


def _bounded(plan: Plan, bound: int) -> Plan:
    """The plan with a bound on schedules that share launches, if it does; 0: none was searched for."""
    sharing = plan.sharing
    if sharing is None:
        return plan
    if not bound:
        return replace(plan, given_up=(*plan.given_up, "launches: no bound on sharing them was searched for"))
    return replace(plan, sharing=replace(sharing, bound=max(bound, sharing.bound)))


def _planned(context: _Context, best: Solution, greedy_solution: Solution, finish_by: float) -> Plan:
    """The best schedule with its order and memory plan, checked."""
    instance, options, clock = context.instance, context.options, context.clock

    def as_it_is() -> Plan:
        return Plan(best, 0, 0, (), ("order: there was no time to look for another than the program's",))

    asked_for = best is not greedy_solution or _is_joint(context)
    if clock.now() >= finish_by and (clock.stopped or not (clock.deterministic and asked_for)):
        plan = as_it_is()
    else:
        plan = _guarded(
            clock,
            lambda: planned(
                instance, best, options, _plan_deadline(context, finish_by), clock, joint=_is_joint(context)
            ),
            as_it_is,
        )
    if plan.solution is greedy_solution:  # already checked
        return plan
    solution, refused = _guarded(clock, lambda: checked_or_unfused(instance, plan.solution, options.solver))
    if refused:
        return Plan(solution, 0, 0, (), (refused,), refused=True)
    return plan


def _timed(
    searched: Statistics, moments: Sequence[float], plan: Plan, given_up: tuple[str, ...], context: _Context
) -> Statistics:
    """The statistics of the whole solve. ``moments``: its start, the end of greedy, the end of the search."""
    ended = time.monotonic()
    return replace(
        searched,
        wall_s=ended - moments[0],
        greedy_s=moments[1] - moments[0],
        search_s=moments[2] - moments[1],
        order_s=ended - moments[2],
        order_bound=plan.order_bound,
        order_proven=plan.order_bound == plan.solution.peak_bytes,
        heuristic_peaks=plan.heuristic_peaks,
        arena_bound=plan.arena_bound,
        given_up=given_up,
        stopped=context.clock.stopped,
        overlap=plan.overlap,
        sharing=plan.sharing,
        progress=context.journal.records,
    )


def _result(
    stated: Instance, options: SolveOptions, solution: Solution, greedy: Solution, bound: int, statistics: Statistics
) -> SolveResult:
    named = digest(stated)
    return SolveResult(
        status="OPTIMAL" if bound == solution.objective else "FEASIBLE",
        solution=replace(solution, instance_digest=named),
        objective=solution.objective,
        bound=bound,
        gap=relative_gap(solution.objective, bound),
        greedy_objective=greedy.objective,
        greedy_solution=replace(greedy, instance_digest=named),
        statistics=statistics,
        seed=options.seed,
        versions=(("python", platform.python_version()), *installed("optfuse", "ortools")),
    )


def _guarded(clock: Clock, action: Callable[[], T], otherwise: Callable[[], T] | None = None) -> T:
    """The result of ``action``; after a KeyboardInterrupt that of ``otherwise``, or of ``action`` without time."""
    try:
        return action()
    except KeyboardInterrupt:
        clock.interrupted()
        return (otherwise or action)()


def _greedy(context: _Context, deadline: float) -> GreedyOutcome:
    """Greedy fusion in at most half the time; a deterministic solve does not limit it."""
    half = NEVER / 2 if context.clock.deterministic else deadline - context.options.time_limit / 2
    return greedy_partition(context.instance, half, context.clock)


@dataclass(frozen=True, slots=True)
class _Found:
    """The outcome of a search: complete solutions, a bound on every solution's cost, and statistics."""

    solutions: tuple[Solution, ...]
    bound: int
    statistics: Statistics
    given_up: tuple[str, ...] = ()


def _require_exact_sums(instance: Instance, greedy_solution: Solution) -> None:
    if greedy_solution.objective > LARGEST_OBJECTIVE:
        raise InvalidInstanceError(
            f"instance {instance.name!r}: greedy's schedule alone takes {greedy_solution.objective} ps, too much to "
            f"compare schedules exactly (at most 2**52 ps, over an hour); check its sizes and rates"
        )


def _with_cap(instance: Instance, cap: int | None) -> Instance:
    """The instance under the caller's cap too: the smaller one counts."""
    rule = instance.rules.peak_memory
    if cap is None or (rule is not None and rule <= cap):
        return instance
    return replace(instance, rules=replace(instance.rules, peak_memory=cap))


def _jointly(context: _Context, starts: tuple[Solution, ...], bound: int, finish_by: float) -> Capped:
    """The answer of the joint model of partition, order and recomputation, within the cap."""
    instance, clock = context.instance, context.clock
    deadline = _search_by(context, finish_by, joint=False)
    left = NEVER if clock.deterministic else deadline - clock.now()
    if not clock.stopped and left > UNFUSED_SECONDS * len(instance.ops):
        starts = (*starts, unfused(instance))
    return within_cap(instance, starts, bound, context.options, deadline, clock)


def _search_by(context: _Context, finish_by: float, *, joint: bool) -> float:
    left = max(0.0, finish_by - context.clock.now())
    most = min(ORDER_MAX_S, max(ORDER_LEAST_S, ORDER_SECONDS * len(context.instance.ops)))
    return finish_by - (JOINT_SHARE * left if joint else min(ORDER_SHARE * left, most))


def _plan_deadline(context: _Context, finish_by: float) -> float:
    """The deadline for order and offsets; a deterministic solve limits them by step counts instead."""
    if context.clock.deterministic:
        return NEVER / 2
    return min(finish_by, context.clock.now() + max(ORDER_MAX_S, ORDER_MAX_SHARE * context.options.time_limit))


def _floor(context: _Context, deadline: float) -> int:
    """The bound that needs no search; its quick form where time is short."""
    seconds = FLOOR_SECONDS * len(context.instance.ops)
    return cost_bound(context.instance, quick=context.clock.now() + seconds > deadline)


def _search(context: _Context, greedy_solution: Solution, floor: int, deadline: float) -> _Found:
    """The outcome of the solver that the options name. ``floor`` is a bound known before."""
    instance, options = context.instance, context.options
    late = context.clock.now() >= deadline
    context.journal.note("greedy", greedy_solution.objective, floor)
    match options.solver:
        case "greedy":
            return _Found((), floor, Statistics())
        case "exhaustive":
            outcome = exhaustive(
                instance, None if context.clock.deterministic else deadline, recompute=options.recompute
            )
            found = () if outcome.solution is None else (outcome.solution,)
            if outcome.complete and outcome.solution is not None:
                return _Found(found, outcome.solution.objective, Statistics(blocks=1, candidates=outcome.kernels))
            return _Found(
                found,
                floor,
                Statistics(blocks=1, candidates=outcome.kernels),
                ("exhaustive: the time limit came before all partitions were tried",),
            )
        case "cpsat" if late:
            return _Found((), floor, Statistics(), ("cpsat: the time limit came before the search could begin",))
        case "cpsat":
            from optfuse.solver.solve_blocks import solve_cpsat

            # The bound without the memory cap holds with it; the joint model handles the cap afterwards.
            capped = instance.rules.peak_memory is not None
            free = replace(instance, rules=replace(instance.rules, peak_memory=None)) if capped else instance
            outcome = solve_cpsat(free, options, greedy_solution, deadline, context.clock, context.journal)
            parts = [(kernel.ops, kernel.scheme) for kernel in outcome.kernels]
            better = outcome.objective < greedy_solution.objective
            return _Found(
                (assemble(instance, parts, hurried=True),) if better else (),  # it will be packed again
                max(floor, outcome.bound),
                Statistics(
                    blocks=outcome.blocks,
                    unique_blocks=outcome.unique_blocks,
                    candidates=outcome.candidates,
                    cuts=outcome.cuts,
                    rounds=outcome.rounds,
                ),
                outcome.given_up,
            )
