"""Order and offsets by CP-SAT: lifetimes as intervals, the peak as a cumulative capacity, offsets as a packing.

Both models start from a known answer and return it unless they find a better one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ortools.sat.python import cp_model

from optfuse.solver.control.clock import WALL, Clock
from optfuse.solver.control.native import run
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.memory.arena import ALIGNMENT, Packing, Span, aligned, arena_floor
from optfuse.solver.memory.order_problem import OrderProblem, peak_bytes
from optfuse.solver.memory.order_search import OrderOutcome

#: Beyond these sizes the models take longer to build and presolve than any limit that a user would set.
MAX_KERNELS = 400
MAX_SPANS = 400


def improve_order(
    problem: OrderProblem, start: OrderOutcome, options: SolveOptions, deadline: float, clock: Clock = WALL
) -> OrderOutcome:
    """An order of lower peak than ``start``'s, if one is found by the deadline, a time of ``clock``; with a bound.

    Returns ``start`` itself when the problem is larger than ``MAX_KERNELS`` or there is no time.
    """
    if start.proven or len(problem.before) > MAX_KERNELS or deadline - clock.now() < 0.05:
        return start
    unit = math.gcd(*(storage.bytes for storage in problem.storages)) or 1
    model = cp_model.CpModel()
    positions = _add_positions(model, problem, start.order)
    low = max(0, -(-(start.bound - problem.base) // unit))
    peak = model.new_int_var(low, (start.peak - problem.base) // unit, "peak")
    _add_lifetimes(model, problem, positions, peak, unit)
    model.minimize(peak)
    solver, status = _run(model, options, deadline, clock)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return start
    order = tuple(sorted(range(len(positions)), key=lambda kernel: solver.value(positions[kernel])))
    bound = problem.base + unit * math.ceil(solver.best_objective_bound - 1e-6)
    found = peak_bytes(problem, order)
    if found >= start.peak:
        order, found = start.order, start.peak
    return OrderOutcome(order, found, min(found, max(start.bound, bound)))


def _add_positions(model: cp_model.CpModel, problem: OrderProblem, start: Sequence[int]) -> list[cp_model.IntVar]:
    """A position for each kernel, all different, after its predecessors'; ``start`` as a hint."""
    count = len(problem.before)
    past, future = _reach(problem.before, start), _reach(problem.after, list(reversed(start)))
    positions = [
        model.new_int_var(past[kernel].bit_count(), count - 1 - future[kernel].bit_count(), f"position_{kernel}")
        for kernel in range(count)
    ]
    model.add_all_different(positions)
    for kernel, mine in enumerate(problem.before):
        for earlier in mine:
            model.add(positions[earlier] < positions[kernel])
    for place, kernel in enumerate(start):
        model.add_hint(positions[kernel], place)
    return positions


def _reach(neighbours: Sequence[Sequence[int]], order: Sequence[int]) -> list[int]:
    """The ancestors (or descendants) of each kernel, as masks; ``order`` lists neighbours first."""
    masks = [0] * len(neighbours)
    for kernel in order:
        for other in neighbours[kernel]:
            masks[kernel] |= masks[other] | 1 << other
    return masks


def _add_lifetimes(
    model: cp_model.CpModel, problem: OrderProblem, positions: list[cp_model.IntVar], peak: cp_model.IntVar, unit: int
) -> None:
    """Each storage is an interval that covers all its users; together they never exceed ``peak``."""
    count = len(positions)
    intervals, demands = [], []
    for number, storage in enumerate(problem.storages):
        if not storage.bytes:
            continue
        first = model.new_int_var(0, count - 1, f"first_{number}")
        end = model.new_int_var(1, count, f"end_{number}")
        length = model.new_int_var(1, count, f"length_{number}")
        intervals.append(model.new_interval_var(first, length, end, f"life_{number}"))
        demands.append(storage.bytes // unit)
        if storage.from_start:
            model.add(first == 0)
        elif len(storage.users) == 1:
            model.add(first == positions[storage.users[0]])
        if storage.to_end:
            model.add(end == count)
        for user in storage.users:
            model.add(first <= positions[user])
            model.add(end > positions[user])
    model.add_cumulative(intervals, demands, peak)


def improve_packing(
    spans: Sequence[Span], start: Packing, options: SolveOptions, deadline: float, clock: Clock = WALL
) -> Packing:
    """A packing into a smaller arena than ``start``'s, if one is found by the deadline, a time of ``clock``.

    Returns ``start`` itself when it is already as small as the live bytes, when there are more than ``MAX_SPANS``
    spans, or when there is no time.
    """
    floor = arena_floor(spans)
    if start.arena_bytes <= floor or len(spans) > MAX_SPANS or deadline - clock.now() < 0.05:
        return start
    unit = math.gcd(*(aligned(span.bytes) for span in spans)) or ALIGNMENT
    model = cp_model.CpModel()
    height = model.new_int_var(floor // unit, start.arena_bytes // unit, "height")
    offsets, times, places = [], [], []
    for span, hint in zip(spans, start.offsets, strict=True):
        size = aligned(span.bytes) // unit
        offset = model.new_int_var(0, start.arena_bytes // unit - size, f"offset_{span.buffer}")
        offsets.append(offset)
        if not size:
            continue
        model.add_hint(offset, hint // unit)
        model.add(offset + size <= height)
        times.append(model.new_fixed_size_interval_var(span.first, span.last - span.first + 1, f"time_{span.buffer}"))
        places.append(model.new_fixed_size_interval_var(offset, size, f"place_{span.buffer}"))
    model.add_no_overlap_2d(times, places)
    model.minimize(height)
    solver, status = _run(model, options, deadline, clock)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE) or solver.value(height) * unit >= start.arena_bytes:
        return start
    return Packing(tuple(solver.value(offset) * unit for offset in offsets), solver.value(height) * unit)


def _run(
    model: cp_model.CpModel, options: SolveOptions, deadline: float, clock: Clock
) -> tuple[cp_model.CpSolver, cp_model.CpSolverStatus]:
    solver = cp_model.CpSolver()
    limit = max(0.01, deadline - clock.now())
    solver.parameters.max_time_in_seconds = limit
    solver.parameters.num_workers = options.workers
    solver.parameters.random_seed = options.seed
    solver.parameters.catch_sigint_signal = False
    if options.deterministic:
        solver.parameters.interleave_search = options.workers > 1
        solver.parameters.max_deterministic_time = options.time_limit / 4
    return solver, run(solver, model, clock)
