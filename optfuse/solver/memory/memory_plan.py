"""The order and the arena of a chosen partition: heuristics first, then exact search, within a deadline.

Deadlines are times of a clock. A deterministic solve has none: its searches are limited by step counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optfuse.solver.control.clock import WALL, Clock
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.memory.arena import Packing, Span, arena_floor
from optfuse.solver.memory.order_problem import HEURISTICS, OrderProblem, floor_bytes, peak_bytes, program_order
from optfuse.solver.memory.order_search import STEP_SECONDS, OrderOutcome, least_peak_order

#: Seconds at most for the exact search of an order, and for a smaller arena.
EXACT_ORDER_S = 2.0
ARENA_S = 5.0
#: The heuristics' names in results.
NAMES = {"program_order": "program", "depth_first": "dfs", "breadth_first": "bfs", "least_memory_first": "lpmf"}


@dataclass(frozen=True, slots=True)
class Ordering:
    """An order with its bound, and the peak bytes of each heuristic that had time to run: pairs (name, bytes)."""

    outcome: OrderOutcome
    heuristic_peaks: tuple[tuple[str, int], ...]


def order_kernels(problem: OrderProblem, options: SolveOptions, deadline: float, clock: Clock = WALL) -> Ordering:
    """The order of least peak found by the deadline, or the program's order if the options ask for it."""
    first = program_order(problem)
    orders = {NAMES["program_order"]: first}
    for heuristic in HEURISTICS:
        if heuristic is not program_order and clock.now() < deadline:
            orders[NAMES[heuristic.__name__]] = heuristic(problem)
    peaks = {name: peak_bytes(problem, order) for name, order in orders.items()}
    shown = tuple(peaks.items())
    if options.order == "program":
        return Ordering(OrderOutcome(tuple(first), peaks["program"], floor_bytes(problem)), shown)
    best = orders[min(peaks, key=peaks.__getitem__)]
    if options.deterministic:
        steps = int(EXACT_ORDER_S / STEP_SECONDS)
        found = least_peak_order(problem, best, deadline=deadline, max_steps=steps, clock=clock)
    else:
        found = least_peak_order(problem, best, deadline=min(deadline, clock.now() + EXACT_ORDER_S), clock=clock)
    return Ordering(found, shown)


def improve_arena(
    spans: Sequence[Span], start: Packing, options: SolveOptions, deadline: float, clock: Clock = WALL
) -> Packing:
    """A packing into a smaller arena than ``start``'s, found in some seconds; else ``start`` itself."""
    if start.arena_bytes <= arena_floor(spans) or options.solver != "cpsat":
        return start
    from optfuse.solver.memory.arena_model import improve_packing

    return improve_packing(spans, start, options, min(deadline, clock.now() + ARENA_S), clock)
