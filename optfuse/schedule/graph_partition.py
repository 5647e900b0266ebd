"""Order a solved graph so that the kernels that no CUDA graph can hold cut it into as few graphs as possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from optfuse.compiler.codegen.uncaptured_steps import moved_numbers
from optfuse.compiler.extract.extraction import Extraction
from optfuse.compiler.ir.collectives import communicates
from optfuse.compiler.ir.devices import HOST, main_device
from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph
from optfuse.errors import InvalidSolutionError
from optfuse.problem.checker import check
from optfuse.problem.solution import Solution
from optfuse.schedule.graph_cuts import SHORTEST_RUN, cut_reason
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.memory.arena import arena_floor
from optfuse.solver.memory.assemble import arena_spans, arrange
from optfuse.solver.memory.fewest_cuts import fewest_runs, runs
from optfuse.solver.memory.launches import Sharing, share_launches
from optfuse.solver.memory.order_problem import OrderProblem, order_problem, peak_bytes
from optfuse.solver.result import SolveResult

#: The order with fewer cuts may need this many times the peak of the solver's.
MORE_MEMORY = 1.05


def graph_cuts(graph: LoopGraph) -> dict[int, str]:
    """By op, why no CUDA graph can hold it. Empty for a graph on the host or with collectives, which is never cut."""
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    main = main_device(buffer.device for buffer in graph.buffers)
    if main == HOST or any(communicates(op) for op in graph.ops):
        return {}
    moved = moved_numbers(graph, graph.ops)
    calls = [(k, op) for k, op in enumerate(graph.ops) if isinstance(op, LibraryCall)]
    found = {k: cut_reason(op, buffers, main, moved) for k, op in calls}
    return {k: reason for k, reason in found.items() if reason}


def planned_graphs(extraction: Extraction, solution: Solution) -> int:
    """How many CUDA graphs a call launches where it is recorded: one for each run of kernels that is long enough."""
    marked = graph_cuts(extraction.graph).keys()
    outside = [any(op in marked for op in kernel.ops) for kernel in solution.kernels]
    if not any(outside):
        return 1
    return sum(not out and len(list(run)) >= SHORTEST_RUN for out, run in groupby(outside))


def with_few_cuts(extraction: Extraction, result: SolveResult, options: SolveOptions) -> SolveResult:
    """The result with its kernels in the order with the fewest cuts, or as it is where that needs more memory.

    Prices do not depend on the order, so what was proved of the objective holds. Kept as they are: an order that the
    options ask for, and one with a peak over the cap or over ``MORE_MEMORY`` times the solver's.

    Raises:
        InvalidSolutionError: If the checker refuses the new order: a defect.
    """
    instance, solution = extraction.instance, result.solution
    marked = graph_cuts(extraction.graph).keys()
    kernels = {number for number, kernel in enumerate(solution.kernels) if marked & set(kernel.ops)}
    if not kernels or options.order == "program" or result.statistics.overlap is not None:
        return result
    problem = order_problem(instance, solution.kernels)
    placed = tuple(range(len(solution.kernels)))
    order = fewest_runs(replace(problem, anchor=placed), kernels)  # beside that, as the solver has ordered them
    if runs(order, kernels) >= runs(placed, kernels):
        return result
    peak, cap = peak_bytes(problem, order), options.peak_bytes or instance.rules.peak_memory
    if peak > MORE_MEMORY * solution.peak_bytes or (cap is not None and peak > cap):
        return result
    order, launches, sharing = _shared(extraction, result, problem, order, kernels)
    arranged = arrange(instance, solution.kernels, problem, order, launches=launches)
    violations = check(instance, arranged)
    if violations:
        raise InvalidSolutionError(f"the order with few cuts of {instance.name}: {violations[0]}")
    floor = arena_floor(arena_spans(instance, problem, order, launches))
    proven = result.statistics.order_proven and arranged.peak_bytes <= solution.peak_bytes
    statistics = replace(result.statistics, arena_bound=floor, order_proven=proven, sharing=sharing)
    return replace(result, solution=arranged, statistics=statistics)


def _shared(
    extraction: Extraction, result: SolveResult, problem: OrderProblem, order: Sequence[int], outside: set[int]
) -> tuple[Sequence[int], tuple[tuple[int, ...], ...], Sharing | None]:
    """An order with few cuts and the launches that kernels share in it, as far as these cut no more."""
    before, instance = result.statistics.sharing, extraction.instance
    if before is not None:
        kernels, cap = result.solution.kernels, instance.rules.peak_memory
        shared, launches, sharing = share_launches(instance, kernels, problem, order, cap)
        if sharing is not None and runs(shared, outside) <= runs(order, outside):
            return shared, launches, replace(sharing, bound=before.bound)
    return order, (), None
