"""Order the chosen kernels, decide which share a launch, and lay out their memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from optfuse.problem.instance import Instance
from optfuse.problem.solution import Solution
from optfuse.solver.bounds.cost_bound import shared_bound
from optfuse.solver.control.clock import Clock
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.memory.arena import arena_floor
from optfuse.solver.memory.assemble import arena_spans, arrange
from optfuse.solver.memory.launches import Sharing, is_worth_it, share_launches
from optfuse.solver.memory.memory_plan import improve_arena, order_kernels
from optfuse.solver.memory.order_problem import order_problem, peak_bytes
from optfuse.solver.memory.order_search import OrderOutcome
from optfuse.solver.memory.reuse import arena_cells, pack_cells
from optfuse.solver.overlap.overlap import Overlap, overlapped, unproven
from optfuse.solver.overlap.split_kernels import Cut, cut_for_transfers


@dataclass(frozen=True, slots=True)
class Plan:
    """A solution with its order, launches and offsets, the bounds on its peak and arena, and what was given up."""

    solution: Solution
    order_bound: int
    arena_bound: int
    heuristic_peaks: tuple[tuple[str, int], ...]
    given_up: tuple[str, ...] = ()
    refused: bool = False
    overlap: Overlap | None = None
    sharing: Sharing | None = None


def planned(
    instance: Instance, solution: Solution, options: SolveOptions, deadline: float, clock: Clock, *, joint: bool
) -> Plan:
    """The order of least time for communication, else of least peak, found in time; then the smallest arena.

    ``joint``: partition and order were decided together, so that kernels are not cut.
    """
    given_up: list[str] = []
    cut = Cut(solution.kernels)
    if options.order == "memory" and options.solver == "cpsat" and not joint:
        cut = cut_for_transfers(instance, solution.kernels, deadline, clock)
        given_up += [f"overlap: {line}" for line in cut.lines()]
    kernels = cut.kernels
    problem = order_problem(instance, kernels)
    ordering = order_kernels(problem, options, deadline, clock)
    found = ordering.outcome
    as_given = tuple(range(len(kernels)))
    if options.order == "memory" and (peak := peak_bytes(problem, as_given)) < found.peak:
        found = OrderOutcome(as_given, peak, found.bound)  # the joint model's order, or the program's
    if not found.proven and options.order == "memory":
        given_up.append(f"order: peak {found.peak} bytes not proven least; no order is below {found.bound}")
    timed = overlapped(instance, kernels, problem, found.order, options, deadline, clock)
    given_up += unproven(instance, None if timed is None else timed[1])
    if timed is not None:
        found = OrderOutcome(timed[0], peak_bytes(problem, timed[0]), found.bound)
    order, launches, sharing = found.order, (), None
    if options.share_launches and options.order == "memory" and timed is None:
        cap = instance.rules.peak_memory
        shared = share_launches(instance, kernels, problem, found.order, cap)
        if shared[2] is not None and is_worth_it(solution, shared[2].saved_ps):
            order, launches, sharing = shared
    sharing = None if sharing is None else replace(sharing, bound=shared_bound(instance))
    spans = arena_spans(instance, problem, order, launches)
    choices = arena_cells(instance, [kernels[number] for number in order], spans, launches)
    floor = arena_floor(choices[0].spans)
    cells, packing = pack_cells(choices, deadline, clock)
    if packing.arena_bytes > floor:
        packing = improve_arena(cells.spans, packing, options, deadline, clock)
    if packing.arena_bytes > floor:
        given_up.append(f"arena: {packing.arena_bytes} bytes not proven least; live bytes alone need {floor}")
    arranged = arrange(instance, kernels, problem, order, cells.apart(packing), launches=launches)
    overlap = None if timed is None else timed[1]
    return Plan(arranged, found.bound, floor, ordering.heuristic_peaks, tuple(given_up), False, overlap, sharing)
