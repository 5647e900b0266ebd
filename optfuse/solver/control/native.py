"""Run native solvers so that the solve can be stopped: Python hears no signal while it waits for native code.

So they run in a thread of their own, and the caller waits where signals are heard.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from ortools.sat.python import cp_model

from optfuse.errors import DefectError
from optfuse.solver.control.clock import Clock
from optfuse.solver.control.options import SolveOptions

T = TypeVar("T")

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
    """Solve; when the clock is stopped, or a KeyboardInterrupt comes, end with what there is.

    Raises:
        DefectError: When the model is none that CP-SAT takes.
    """
    status = interruptibly(lambda: solver.solve(model), solver.stop_search, clock)
    if status == cp_model.MODEL_INVALID:
        raise DefectError(f"CP-SAT refused a model: {model.validate()}; this is a defect of optfuse, please report it")
    clock.spend(solver.response_proto.deterministic_time)
    return status


def interruptibly(work: Callable[[], T], halt: Callable[[], object], clock: Clock) -> T:
    """The result of native work. ``halt``, called when the clock is stopped, makes the work end early."""
    found: list[T] = []
    failures: list[Exception] = []
    done = threading.Event()

    def task() -> None:
        try:
            found.append(work())
        except Exception as error:
            failures.append(error)
        finally:
            done.set()

    threading.Thread(target=task, name="native", daemon=True).start()
    # Not the thread's own ``join``: before Python 3.13 an interrupt in it marks the thread as ended while it runs.
    while True:
        try:
            while not done.wait(POLL_SECONDS):
                if clock.stopped:
                    halt()
            break
        except KeyboardInterrupt:
            halt()
            clock.interrupted()
    if failures:
        raise failures[0]
    return found[0]
