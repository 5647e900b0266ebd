"""Do buffers fit in a capacity? Tree search, CP-SAT and sweeps over windows; the first to know ends the others.

They are good at different problems: the tree where there are many buffers and some slack, CP-SAT where sections are
full, sweeps where both occur at different times. CP-SAT runs outside the interpreter's lock and sweeps in another
process, so the tree search has a core of its own beside either.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from optfuse.solve.cpsat.elsewhere import sweeps_elsewhere
from optfuse.solve.cpsat.packing import SectionModel
from optfuse.solve.cpsat.windows import sweeps
from optfuse.solve.packing.layout import Layout
from optfuse.solve.packing.restarts import search
from optfuse.solve.packing.tree import Outcome

#: Seconds of the first slice when one worker takes turns; each next one is twice as long.
SLICE_S = 1.0
#: With two workers, the share of the time in which CP-SAT has the second; sweeps have the rest.
MODEL_SHARE = 0.5
#: The share in which the first worker searches the tree of the whole; it sweeps in the rest, from other seeds.
TREE_SHARE = 0.3
OTHER_SEEDS = 1000
#: Seconds between two looks at whether to stop.
POLL_SECONDS = 0.05

Method = Literal["bound", "tree", "cpsat", "windows", "none"]


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether some buffers fit, and where (units): ``offsets`` are empty unless ``outcome`` is "packed"."""

    outcome: Outcome
    offsets: tuple[int, ...] = ()
    method: Method = "none"
    nodes: int = 0


def fit(
    problem: Layout, capacity: int, workers: int, seed: int, deadline: float, stop: Callable[[], bool] = lambda: False
) -> Fit:
    """Place all within ``capacity`` units, or prove that it cannot be, or stop at the deadline (``time.monotonic``).

    ``stop`` is asked now and then; True ends the search.
    """
    if problem.loads.max() > capacity:
        return Fit("infeasible", method="bound")
    if not problem.searchable:
        return Fit("stopped")
    return (
        _in_turns(problem, capacity, seed, deadline, stop)
        if workers == 1
        else _at_once(problem, capacity, workers - 1, seed, deadline, stop)
    )


def _at_once(problem: Layout, capacity: int, workers: int, seed: int, deadline: float, stop: Callable[[], bool]) -> Fit:
    """The tree search in this thread; beside it CP-SAT, then sweeps, or both when there are workers for both."""
    model = SectionModel(problem, capacity)
    ended = threading.Event()
    found: list[Fit] = []

    def over() -> bool:
        return ended.is_set() or stop()

    def solve_model(until: float) -> None:
        report(model.run(max(1, workers - 2), seed, until), "cpsat", lambda: model.offsets)

    def sweep() -> None:
        outcome, offsets = sweeps_elsewhere(problem, capacity, seed, deadline, ended.is_set)
        report(outcome, "windows", lambda: offsets)

    def solve_then_sweep() -> None:
        now = time.monotonic()
        solve_model(now + MODEL_SHARE * (deadline - now))
        if not ended.is_set():
            sweep()

    def report(outcome: Outcome, method: Method, offsets: Callable[[], tuple[int, ...]]) -> None:
        if outcome != "stopped":
            found.append(Fit(outcome, offsets(), method))
            ended.set()

    tasks = (solve_then_sweep,) if workers == 2 else (lambda: solve_model(deadline), sweep)
    threads = [threading.Thread(target=task, daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    try:
        now = time.monotonic()
        outcome, offsets, nodes = search(problem, capacity, seed, now + TREE_SHARE * (deadline - now), over)
        method: Method = "tree"
        if outcome == "stopped" and not over():
            outcome, offsets = sweeps(problem, capacity, seed + OTHER_SEEDS, deadline, over)
            method = "windows"
    finally:
        ended.set()
        for thread in threads:
            while thread.is_alive():
                # A request to stop that comes before the solver has begun goes unheard: hence again and again.
                model.stop()
                thread.join(0.02)
    if outcome != "stopped":
        return Fit(outcome, offsets, method, nodes)
    return replace(found[0], nodes=nodes) if found else Fit("stopped", nodes=nodes)


def _in_turns(problem: Layout, capacity: int, seed: int, deadline: float, stop: Callable[[], bool]) -> Fit:
    """One after the other, each time for longer."""
    length, total, turn = SLICE_S, 0, 0
    while (now := time.monotonic()) < deadline and not stop():
        outcome, offsets, nodes = search(problem, capacity, seed + turn, min(deadline, now + length), stop)
        total += nodes
        if outcome != "stopped":
            return Fit(outcome, offsets, "tree", total)
        model = SectionModel(problem, capacity)
        with _stopped_by(stop, model):
            outcome = model.run(1, seed + turn, min(deadline, time.monotonic() + length))
        if outcome != "stopped":
            return Fit(outcome, model.offsets, "cpsat", total)
        outcome, offsets = sweeps(problem, capacity, seed + turn, min(deadline, time.monotonic() + length), stop)
        if outcome != "stopped":
            return Fit(outcome, offsets, "windows", total)
        length, turn = 2 * length, turn + 1
    return Fit("stopped", nodes=total)


@contextmanager
def _stopped_by(stop: Callable[[], bool], model: SectionModel) -> Generator[None]:
    """Have a model's search ended from beside it when ``stop`` returns True."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(POLL_SECONDS):
            if stop():
                model.stop()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
