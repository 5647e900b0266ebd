"""One problem in, one answer with its certificate out: the stages of a solve, in order."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

from optfuse.errors import InfeasibleError, InvalidInstanceError
from optfuse.problem.checker import check
from optfuse.problem.cost import kernel_cost
from optfuse.problem.instance import ALONE, Instance
from optfuse.problem.solution import Solution
from optfuse.problem.validate import validate
from optfuse.solve.arena import arena_floor
from optfuse.solve.assemble import arena_spans, arrange, assemble
from optfuse.solve.conflict import under_rules
from optfuse.solve.exact_order import OrderOutcome, least_peak_order
from optfuse.solve.exhaustive import exhaustive
from optfuse.solve.greedy import greedy_partition
from optfuse.solve.memory import HEURISTICS, OrderProblem, floor_bytes, order_problem, peak_bytes, program_order
from optfuse.solve.options import SolveOptions
from optfuse.solve.result import SolveResult, Statistics, relative_gap
from optfuse.solve.reuse import arena_cells, pack_cells
from optfuse.solve.seeds import seed_groups

#: Of the time that is left after greedy, the share kept for the order and the offsets.
ORDER_SHARE = 0.2
ORDER_SHARE_MAX_S = 5.0

#: Sums of prices stay whole in the floating point of linear relaxations, and far inside of CP-SAT's 64 bits.
LARGEST_OBJECTIVE = 1 << 52


def solve(instance: Instance, options: SolveOptions | None = None) -> SolveResult:
    """The best schedule found within the time limit, and a true bound on every schedule's cost under the model.

    Never worse than greedy. The answer and greedy's are judged by the checker before they are returned.

    Raises:
        InvalidInstanceError: When the instance breaks its own format.
        RuleError: When a rule matches no op.
        RuleConflictError: When no schedule obeys the rules; names the smallest set that conflicts.
        IllegalKernelError: When that was not decided in time.
        InfeasibleError: When no schedule was found within the memory cap.
        InvalidOptionError: When the exhaustive solver is asked to take a large instance.
    """
    options = SolveOptions() if options is None else options
    start = time.monotonic()
    instance = under_rules(instance, options.rules)
    validate(instance)
    deadline = start + options.time_limit
    given_up: list[str] = []

    partition = greedy_partition(instance, start + options.time_limit / 2)
    if not partition.complete:
        given_up.append("greedy: stopped at half the time limit before its rounds were over")
    greedy_done = time.monotonic()
    greedy_solution = assemble(instance, partition.partition)
    _require_exact_sums(instance, greedy_solution)
    _judge(instance, greedy_solution, "greedy", ignore_cap=True)
    wrap_up = 2 * (time.monotonic() - greedy_done)

    finish_by = deadline - wrap_up
    search = _search(instance, options, greedy_solution, _search_deadline(finish_by))
    given_up.extend(search.given_up)

    searched = time.monotonic()
    plan = _best_plan(instance, [*search.solutions, greedy_solution], options, finish_by)
    given_up.extend(plan.given_up)
    _judge(instance, plan.solution, options.solver)

    objective = plan.solution.objective
    bound = min(search.bound, objective)
    ended = time.monotonic()
    return SolveResult(
        status="OPTIMAL" if bound == objective else "FEASIBLE",
        solution=plan.solution,
        objective=objective,
        bound=bound,
        gap=relative_gap(objective, bound),
        greedy_objective=greedy_solution.objective,
        greedy_solution=greedy_solution,
        statistics=replace(
            search.statistics,
            wall_s=ended - start,
            greedy_s=greedy_done - start,
            order_s=ended - searched,
            order_bound=plan.order_bound,
            order_proven=plan.order_bound == plan.solution.peak_bytes,
            arena_bound=plan.arena_bound,
            given_up=tuple(given_up),
        ),
        seed=options.seed,
        versions=_versions(),
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """What a solver returns: complete solutions, a bound on every solution's cost, and how it went."""

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


def _search_deadline(finish_by: float) -> float:
    left = max(0.0, finish_by - time.monotonic())
    return finish_by - min(ORDER_SHARE * left, ORDER_SHARE_MAX_S)


def _search(instance: Instance, options: SolveOptions, greedy_solution: Solution, deadline: float) -> _Found:
    """Run the solver that was asked for."""
    match options.solver:
        case "greedy":
            return _Found((), _floor(instance), Statistics())
        case "exhaustive":
            outcome = exhaustive(instance, deadline)
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
            outcome = solve_cpsat(free, options, greedy_solution, deadline)
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
        found = least_peak_order(problem, best, deadline=min(deadline, time.monotonic() + 2.0))
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
