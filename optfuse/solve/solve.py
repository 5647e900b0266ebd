"""One problem in, one answer with its certificate out: the stages of a solve, in order."""

from __future__ import annotations

import math
import platform
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

from optfuse.errors import InfeasibleError
from optfuse.problem.checker import check
from optfuse.problem.cost import kernel_cost
from optfuse.problem.instance import ALONE, Instance
from optfuse.problem.solution import Solution
from optfuse.problem.validate import validate
from optfuse.solve.arena import arena_floor
from optfuse.solve.assemble import arena_spans, arrange, assemble
from optfuse.solve.clock import NEVER, Clock, WorkClock
from optfuse.solve.exact_order import OrderOutcome, least_peak_order
from optfuse.solve.exhaustive import exhaustive
from optfuse.solve.greedy import GreedyOutcome, greedy_partition
from optfuse.solve.memory import HEURISTICS, OrderProblem, floor_bytes, order_problem, peak_bytes, program_order
from optfuse.solve.options import SolveOptions
from optfuse.solve.progress import Journal, OnProgress
from optfuse.solve.result import SolveResult, Statistics
from optfuse.solve.reuse import arena_cells, pack_cells
from optfuse.solve.seeds import seed_groups

T = TypeVar("T")

#: Of the time that is left after greedy, the share kept for the order and the offsets.
ORDER_SHARE = 0.2
ORDER_SHARE_MAX_S = 5.0


def solve(
    instance: Instance,
    options: SolveOptions | None = None,
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
        IllegalKernelError: When the rules ask for a kernel that may not be.
        InfeasibleError: When no schedule was found within the memory cap.
        InvalidOptionError: When the exhaustive solver is asked to take a large instance.
    """
    options = SolveOptions() if options is None else options
    kind = WorkClock if options.deterministic else Clock
    clock = kind(stop, interruptible=options.interruptible)
    journal = Journal(on_progress)
    start, started = clock.now(), time.monotonic()
    validate(instance)
    deadline = start + options.time_limit
    given_up: list[str] = []

    partition = _guarded(clock, lambda: _greedy(instance, options, clock, start))
    if not partition.complete:
        given_up.append("greedy: stopped before its rounds were over")
    greedy_done = time.monotonic()
    greedy_solution = assemble(instance, partition.partition)
    _judge(instance, greedy_solution, "greedy", ignore_cap=True)
    # The answer will have to be assembled and judged too, and packed with more care.
    finish_by = deadline if clock.deterministic else deadline - 2 * (time.monotonic() - greedy_done)
    context = _Context(instance, options, clock, journal)
    search = _guarded(
        clock,
        lambda: _search(context, greedy_solution, _search_deadline(clock, finish_by)),
        lambda: _Found((), _floor(instance), Statistics()),
    )
    given_up.extend(search.given_up)

    searched = time.monotonic()
    candidates = [*search.solutions, greedy_solution]
    plan = _guarded(
        clock,
        lambda: _best_plan(instance, candidates, options, _plan_deadline(clock, finish_by)),
        lambda: _best_plan(instance, candidates, replace(options, order="program"), 0.0),
    )
    given_up.extend(plan.given_up)
    _guarded(clock, lambda: _judge(instance, plan.solution, options.solver))
    if clock.stopped:
        given_up.append("stopped before the end, as asked")

    objective = plan.solution.objective
    bound = min(search.bound, objective)
    journal.note("done", objective, bound)
    ended = time.monotonic()
    return SolveResult(
        status="OPTIMAL" if bound == objective else "FEASIBLE",
        solution=plan.solution,
        objective=objective,
        bound=bound,
        gap=(objective - bound) / objective if bound < objective else 0.0,
        greedy_objective=greedy_solution.objective,
        greedy_solution=greedy_solution,
        statistics=replace(
            search.statistics,
            wall_s=ended - started,
            greedy_s=greedy_done - started,
            search_s=searched - greedy_done,
            order_s=ended - searched,
            order_bound=plan.order_bound,
            order_proven=plan.order_bound == plan.solution.peak_bytes,
            arena_bound=plan.arena_bound,
            given_up=tuple(given_up),
            stopped=clock.stopped,
            progress=journal.records,
        ),
        seed=options.seed,
        versions=_versions(),
    )


@dataclass(frozen=True, slots=True)
class _Context:
    """What the search needs beside the time it has."""

    instance: Instance
    options: SolveOptions
    clock: Clock
    journal: Journal


def _guarded(clock: Clock, action: Callable[[], T], otherwise: Callable[[], T] | None = None) -> T:
    """Do something. When a KeyboardInterrupt comes, do the other thing, or the same again with no time left."""
    try:
        return action()
    except KeyboardInterrupt:
        clock.interrupted()
        return (otherwise or action)()


def _greedy(instance: Instance, options: SolveOptions, clock: Clock, start: float) -> GreedyOutcome:
    """Greedy takes at most half the time; where answers must repeat, what it needs."""
    half = NEVER / 2 if clock.deterministic else start + options.time_limit / 2
    return greedy_partition(instance, half, clock)


@dataclass(frozen=True, slots=True)
class _Found:
    """What a solver returns: complete solutions, a bound on every solution's cost, and how it went."""

    solutions: tuple[Solution, ...]
    bound: int
    statistics: Statistics
    given_up: tuple[str, ...] = ()


def _search_deadline(clock: Clock, finish_by: float) -> float:
    left = max(0.0, finish_by - clock.now())
    return finish_by - min(ORDER_SHARE * left, ORDER_SHARE_MAX_S)


def _plan_deadline(clock: Clock, finish_by: float) -> float:
    """Order and offsets look at the wall clock; where answers must repeat, they are limited by their own counts."""
    if clock.stopped:
        return 0.0
    return math.inf if clock.deterministic else finish_by


def _search(context: _Context, greedy_solution: Solution, deadline: float) -> _Found:
    """Run the solver that was asked for."""
    instance, options = context.instance, context.options
    context.journal.note("greedy", greedy_solution.objective, _floor(instance))
    match options.solver:
        case "greedy":
            return _Found((), _floor(instance), Statistics())
        case "exhaustive":
            outcome = exhaustive(instance, None if context.clock.deterministic else deadline)
            found = () if outcome.solution is None else (outcome.solution,)
            if outcome.complete and outcome.solution is not None:
                return _Found(found, outcome.solution.objective, Statistics(blocks=1, candidates=outcome.kernels))
            return _Found(
                found,
                _floor(instance),
                Statistics(blocks=1, candidates=outcome.kernels),
                ("exhaustive: the time limit came before all partitions were tried",),
            )
        case "cpsat":
            # ortools takes most of a second to import; greedy, exhaustive and the checker do without.
            from optfuse.solve.cpsat import solve_cpsat

            # Without the memory cap the bound still holds; whether the partition keeps the cap is seen afterwards.
            free = replace(instance, rules=replace(instance.rules, peak_memory=None))
            outcome = solve_cpsat(free, options, greedy_solution, deadline, context.clock, context.journal)
            parts = [(kernel.ops, kernel.scheme) for kernel in outcome.kernels]
            return _Found(
                (assemble(instance, parts),),
                outcome.bound,
                Statistics(
                    blocks=outcome.blocks,
                    unique_blocks=outcome.unique_blocks,
                    candidates=outcome.candidates,
                    cuts=outcome.cuts,
                    rounds=outcome.rounds,
                ),
                outcome.given_up,
            )


def _floor(instance: Instance) -> int:
    """A bound that needs no search: ops that only run alone cost what they cost; the rest, at least one launch."""
    optional = {op for variant in instance.variants for alternative in variant.alternatives for op in alternative}
    total = 0
    shared = False
    for number, op in enumerate(instance.ops):
        if number in optional:
            continue
        if all(offer.scheme == ALONE for offer in op.offers):
            total += kernel_cost(instance, (number,), ALONE)
        else:
            shared = True
    return total + (min(device.launch_ps for device in instance.devices) if shared else 0)


@dataclass(frozen=True, slots=True)
class _Plan:
    solution: Solution
    order_bound: int
    arena_bound: int
    given_up: tuple[str, ...] = ()


def _best_plan(instance: Instance, solutions: Iterable[Solution], options: SolveOptions, deadline: float) -> _Plan:
    """Order and offsets for the cheapest partition that keeps the memory cap.

    Raises:
        InfeasibleError: When none does, not even every op on its own.
    """
    cap = instance.rules.peak_memory
    ranked = sorted(solutions, key=lambda solution: solution.objective)
    if cap is not None:
        ranked.append(_unfused(instance))
    lowest = None
    for solution in ranked:
        plan = _plan(instance, solution, options, deadline)
        if cap is None or plan.solution.peak_bytes <= cap:
            if solution is ranked[0]:
                return plan
            note = "memory cap: the cheapest partition found does not fit; a dearer one does"
            return replace(plan, given_up=(*plan.given_up, note))
        lowest = min(plan.solution.peak_bytes, lowest) if lowest is not None else plan.solution.peak_bytes
    raise InfeasibleError(
        f"instance {instance.name!r}: no schedule found within peak_memory of {cap} bytes; the lowest found needs "
        f"{lowest}; raise the cap"
    )


def _unfused(instance: Instance) -> Solution:
    """Every op on its own, but for what the rules put together, each in its cheapest scheme."""
    groups = seed_groups(instance)
    return assemble(
        instance,
        [
            (group.ops, min(group.schemes, key=lambda s, ops=group.ops: (kernel_cost(instance, ops, s), s)))
            for group in groups
        ],
    )


def _plan(instance: Instance, solution: Solution, options: SolveOptions, deadline: float) -> _Plan:
    """The order of least peak that can be found in time, then the smallest arena."""
    problem = order_problem(instance, solution.kernels)
    given_up: list[str] = []
    if options.order == "program":
        found = _as_is(program_order(problem), problem)
    else:
        starts = [program_order(problem)]
        for heuristic in HEURISTICS[1:]:
            if time.monotonic() < deadline:
                starts.append(heuristic(problem))
        best = min(starts, key=lambda order: peak_bytes(problem, order))
        until = deadline if options.deterministic else min(deadline, time.monotonic() + 2.0)
        found = least_peak_order(problem, best, deadline=until)
        if not found.proven and options.solver == "cpsat":
            from optfuse.solve.cpsat.order import improve_order

            now = time.monotonic()
            found = improve_order(problem, found, options, now + 0.75 * (deadline - now))
        if not found.proven:
            given_up.append(f"order: peak {found.peak} bytes not proven least; no order is below {found.bound}")
    spans = arena_spans(instance, problem, found.order)
    choices = arena_cells(instance, solution.kernels, found.order, spans)
    floor = arena_floor(choices[0].spans)
    cells, packing = pack_cells(choices, deadline)
    if packing.arena_bytes > floor and options.solver == "cpsat":
        from optfuse.solve.cpsat.order import improve_packing

        packing = improve_packing(cells.spans, packing, options, deadline)
    if packing.arena_bytes > floor:
        given_up.append(f"arena: {packing.arena_bytes} bytes not proven least; live bytes alone need {floor}")
    arranged = arrange(instance, solution.kernels, problem, found.order, cells.apart(packing))
    return _Plan(arranged, found.bound, floor, tuple(given_up))


def _as_is(order: list[int], problem: OrderProblem) -> OrderOutcome:
    return OrderOutcome(tuple(order), peak_bytes(problem, order), floor_bytes(problem))


def _judge(instance: Instance, solution: Solution, solver: str, ignore_cap: bool = False) -> None:
    """Run the checker; a violation here is a defect of the solver, not of the input."""
    violations = [v for v in check(instance, solution) if not (ignore_cap and v.code == "peak_cap")]
    if violations:
        shown = "; ".join(f"{v.code}: {v.message}" for v in violations[:3])
        raise AssertionError(
            f"the {solver} solver returned an invalid solution ({len(violations)} violations): {shown}"
        )


def _versions() -> tuple[tuple[str, str], ...]:
    found = [("python", platform.python_version())]
    for package in ("optfuse", "ortools"):
        try:
            found.append((package, version(package)))
        except PackageNotFoundError:
            continue
    return tuple(found)
