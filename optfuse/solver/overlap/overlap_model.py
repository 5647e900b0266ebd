"""The order of least makespan by CP-SAT: an interval for each kernel and transfer, no overlap on any resource.

Launches of starts and waits are intervals of no length among the kernels: they lie between two of them. So the launches
of a solution, by time, are an order whose ``timeline`` takes no longer, but for what kernels lose beside transfers: the
model leaves that out, so its bound holds for both.
"""

from __future__ import annotations

import math

from ortools.sat.python import cp_model

from optfuse.solver.control.clock import Clock
from optfuse.solver.control.native import run
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.overlap.timeline import TimelineProblem, queued_before, timeline

#: Deterministic time of a search, which is the same on every machine. The order of starts does not depend on it.
SECONDS = 2.0


def best_order(
    problem: TimelineProblem,
    start: tuple[int, ...],
    bound: int,
    options: SolveOptions,
    deadline: float,
    clock: Clock,
) -> tuple[tuple[int, ...], int]:
    """The best order found, and a lower bound on every makespan.

    ``start`` is a valid order of all kernels, the hint and the most that the answer may take; ``bound`` holds already.
    """
    timed = timeline(problem, start)
    model = cp_model.CpModel()
    end = model.new_int_var(bound, timed.makespan, "makespan")
    launches = _add_kernels(model, problem, timed.begins, end)
    _add_order(model, problem, launches)
    model.minimize(end)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = options.workers
    solver.parameters.random_seed = options.seed
    solver.parameters.catch_sigint_signal = False
    solver.parameters.max_deterministic_time = SECONDS
    if options.deterministic:
        solver.parameters.interleave_search = options.workers > 1
    else:
        solver.parameters.max_time_in_seconds = max(0.01, deadline - clock.now())
    status = run(solver, model, clock)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return start, bound
    found = sorted(
        problem.topological,  # a stable sort: launches at one time stay in order, and kernels come after them
        key=lambda kernel: (solver.value(launches[kernel][0]), not problem.is_event[kernel]),
    )
    return tuple(found), max(bound, math.ceil(solver.best_objective_bound - 1e-6))


Launches = list[tuple[cp_model.IntVar, cp_model.IntVar]]


def _add_kernels(
    model: cp_model.CpModel, problem: TimelineProblem, hints: tuple[int, ...], end: cp_model.IntVar
) -> Launches:
    """By kernel, when it is launched and when it begins (the same but for starts); none overlap on a resource."""
    horizon = max((b + problem.busy[k] + problem.transfer[k] for k, b in enumerate(hints)), default=0)
    launches: Launches = []
    on: dict[int, list[cp_model.IntervalVar]] = {}
    for kernel, hint in enumerate(hints):
        launch = begin = model.new_int_var(0, horizon, f"launch_{kernel}")
        if problem.channel[kernel]:
            begin = model.new_int_var(0, horizon, f"begin_{kernel}")
            model.add(begin >= launch)
        launches.append((launch, begin))
        model.add_hint(begin, hint)
        length = problem.busy[kernel] + problem.transfer[kernel]
        model.add(begin + length <= end)
        if problem.is_event[kernel]:
            on.setdefault(0, []).append(model.new_fixed_size_interval_var(launch, 0, f"event_{kernel}"))
        if length:
            interval = model.new_fixed_size_interval_var(begin, length, f"run_{kernel}")
            on.setdefault(problem.channel[kernel], []).append(interval)
    for intervals in on.values():
        model.add_no_overlap(intervals)
    return launches


def _add_order(model: cp_model.CpModel, problem: TimelineProblem, launches: Launches) -> None:
    """Each kernel is launched once those before it have ended; a start's successors need only its launch."""
    for kernel, earlier in enumerate(problem.before):
        launch, begin = launches[kernel]
        queued = set(queued_before(problem, kernel))
        for other in earlier:
            if other in problem.awaited[kernel]:
                model.add(launch >= launches[other][1] + problem.transfer[other])
            else:
                model.add(launch >= launches[other][0] + problem.busy[other])
            if other in queued:
                model.add(begin >= launches[other][1] + problem.transfer[other])
