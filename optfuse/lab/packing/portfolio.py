"""Tree search, CP-SAT and sweeps over windows, in parallel or in turns; the first that decides stops the others.

They are good at different problems: the tree where there are many buffers and some slack, CP-SAT where sections are
full, sweeps where both occur at different times. CP-SAT runs outside the interpreter's lock and sweeps in another
process, so the tree search has a core of its own beside either.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from optfuse.lab.packing.fit_result import Fit, Method, stop_when
from optfuse.lab.packing.layout import Layout, Outcome
from optfuse.lab.packing.restarts import search
from optfuse.lab.packing.sections import SectionModel
from optfuse.lab.packing.sweep_process import sweeps_in_process
from optfuse.lab.packing.windows import sweeps

#: Seconds of the first slice when one worker takes turns; each next one is twice as long.
SLICE_S = 1.0
#: With two workers, the share of the time in which CP-SAT has the second; sweeps have the rest.
MODEL_SHARE = 0.5
#: The share in which the first worker searches the tree of the whole; it sweeps in the rest, from other seeds.
TREE_SHARE = 0.3
OTHER_SEEDS = 1000


def at_once(problem: Layout, capacity: int, workers: int, seed: int, deadline: float, stop: Callable[[], bool]) -> Fit:
    """The tree search in this thread; beside it CP-SAT, then sweeps, or both when there are workers for both."""
    model = SectionModel(problem, capacity)
    ended = threading.Event()
    found: list[Fit] = []

    def over() -> bool:
        return ended.is_set() or stop()

    def solve_model(until: float) -> None:
        report(model.run(max(1, workers - 2), seed, until), "cpsat", lambda: model.offsets)

    def sweep() -> None:
        outcome, offsets = sweeps_in_process(problem, capacity, seed, deadline, ended.is_set)
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
                # CP-SAT ignores a request to stop that comes before its search has begun, so it is repeated.
                model.stop()
                thread.join(0.02)
    if outcome != "stopped":
        return Fit(outcome, offsets, method, nodes)
    return replace(found[0], nodes=nodes) if found else Fit("stopped", nodes=nodes)


def in_turns(problem: Layout, capacity: int, seed: int, deadline: float, stop: Callable[[], bool]) -> Fit:
    """Run the three searches one after the other, for longer in each turn."""
    length, total, turn = SLICE_S, 0, 0
    while (now := time.monotonic()) < deadline and not stop():
        outcome, offsets, nodes = search(problem, capacity, seed + turn, min(deadline, now + length), stop)
        total += nodes
        if outcome != "stopped":
            return Fit(outcome, offsets, "tree", total)
        model = SectionModel(problem, capacity)
        with stop_when(stop, model):
            outcome = model.run(1, seed + turn, min(deadline, time.monotonic() + length))
        if outcome != "stopped":
            return Fit(outcome, model.offsets, "cpsat", total)
        outcome, offsets = sweeps(problem, capacity, seed + turn, min(deadline, time.monotonic() + length), stop)
        if outcome != "stopped":
            return Fit(outcome, offsets, "windows", total)
        length, turn = 2 * length, turn + 1
    return Fit("stopped", nodes=total)
