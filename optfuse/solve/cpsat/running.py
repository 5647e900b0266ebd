"""Run CP-SAT so that the solve can be stopped: Python hears no signal while it waits for native code.

So the solver runs in a thread of its own, and the caller waits where signals are heard.
"""

from __future__ import annotations

import threading

from ortools.sat.python import cp_model

from optfuse.solve.clock import Clock
from optfuse.solve.options import SolveOptions

#: Seconds between two looks at whether to stop.
POLL_SECONDS = 0.05


def configured(options: SolveOptions, clock: Clock, deadline: float) -> cp_model.CpSolver:
    """A CP-SAT solver that obeys the options and stops at ``deadline``, a time of ``clock``."""
    solver = cp_model.CpSolver()
    left = max(0.01, deadline - clock.now())
    solver.parameters.num_workers = 1 if clock.deterministic else options.workers
    solver.parameters.random_seed = options.seed
    if clock.deterministic:
        solver.parameters.max_deterministic_time = left
    else:
        solver.parameters.max_time_in_seconds = left
    # SIGINT belongs to the caller, who stops everything, not this one search.
    solver.parameters.catch_sigint_signal = False
    return solver


def run(solver: cp_model.CpSolver, model: cp_model.CpModel, clock: Clock) -> cp_model.CpSolverStatus:
    """Solve; when the clock is stopped, or a KeyboardInterrupt comes, end with what there is."""
    found: list[cp_model.CpSolverStatus] = []
    failures: list[Exception] = []

    def work() -> None:
        try:
            found.append(solver.solve(model))
        except Exception as error:
            failures.append(error)

    worker = threading.Thread(target=work, name="cp-sat", daemon=True)
    worker.start()
    while worker.is_alive():
        try:
            worker.join(POLL_SECONDS)
            if clock.stopped:
                solver.stop_search()
        except KeyboardInterrupt:
            solver.stop_search()
            clock.interrupted()
    if failures:
        raise failures[0]
    clock.spend(solver.response_proto.deterministic_time)
    return found[0]
