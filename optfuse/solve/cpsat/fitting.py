"""Do buffers fit in a capacity? Tree search and CP-SAT side by side; the first to know ends the other.

They are good at different problems: the tree where there are many buffers and some slack, CP-SAT where sections are
full. CP-SAT runs outside the interpreter's lock, so the tree search has a core of its own beside it.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Literal

from optfuse.solve.cpsat.packing import SectionModel
from optfuse.solve.packing.layout import Layout
from optfuse.solve.packing.restarts import search
from optfuse.solve.packing.tree import Outcome

#: Above so many (buffer, section) pairs the searches' tables and models would not fit; first fit is all there is.
MAX_PAIRS = 4_000_000
#: Seconds of the first slice when one worker takes turns; each next one is twice as long.
SLICE_S = 1.0


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether some buffers fit, and where (units): ``offsets`` are empty unless ``outcome`` is "packed"."""

    outcome: Outcome
    offsets: tuple[int, ...] = ()
    method: Literal["bound", "tree", "cpsat", "none"] = "none"
    nodes: int = 0


def fit(problem: Layout, capacity: int, workers: int, seed: int, deadline: float) -> Fit:
    """Place all within ``capacity`` units, or prove that it cannot be, or stop at the deadline (``time.monotonic``)."""
    if problem.loads.max() > capacity:
        return Fit("infeasible", method="bound")
    if problem.count * len(problem.members) > MAX_PAIRS:
        return Fit("stopped")
    return (
        _in_turns(problem, capacity, seed, deadline)
        if workers == 1
        else _at_once(problem, capacity, workers - 1, seed, deadline)
    )


def _at_once(problem: Layout, capacity: int, threads: int, seed: int, deadline: float) -> Fit:
    """CP-SAT in a thread of its own, the tree search in this one."""
    model = SectionModel(problem, capacity)
    outcomes: list[Outcome] = []
    worker = threading.Thread(target=lambda: outcomes.append(model.run(threads, seed, deadline)), daemon=True)
    worker.start()
    try:
        outcome, offsets, nodes = search(problem, capacity, seed, deadline, lambda: bool(outcomes))
    finally:
        while worker.is_alive():
            if time.monotonic() >= deadline or not outcomes:
                model.stop()
            worker.join(0.02)
    if outcome != "stopped":
        return Fit(outcome, offsets, "tree", nodes)
    return Fit(outcomes[0] if outcomes else "stopped", model.offsets, "cpsat", nodes)


def _in_turns(problem: Layout, capacity: int, seed: int, deadline: float) -> Fit:
    """One after the other, each time for longer."""
    length, total, turn = SLICE_S, 0, 0
    while (now := time.monotonic()) < deadline:
        outcome, offsets, nodes = search(problem, capacity, seed + turn, min(deadline, now + length))
        total += nodes
        if outcome != "stopped":
            return Fit(outcome, offsets, "tree", total)
        model = SectionModel(problem, capacity)
        outcome = model.run(1, seed + turn, min(deadline, time.monotonic() + length))
        if outcome != "stopped":
            return Fit(outcome, model.offsets, "cpsat", total)
        length, turn = 2 * length, turn + 1
    return Fit("stopped", nodes=total)
