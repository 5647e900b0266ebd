"""Runs sweeps over windows in a process of their own, as most of their work is Python code, which holds the GIL."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from optfuse.lab.packing.layout import Layout, Outcome
from optfuse.lab.packing.windows import sweeps

#: The child gets the module search path of this process.
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from optfuse.lab.packing.sweep_process import main; main()"
)


def sweeps_in_process(
    problem: Layout, capacity: int, seed: int, deadline: float, stop: Callable[[], bool]
) -> tuple[Outcome, tuple[int, ...]]:
    """Run ``sweeps`` in another process, which is killed at the deadline or when ``stop`` returns True."""
    task = {
        "unit": problem.unit,
        "arrays": [a.tolist() for a in (problem.sizes, problem.aligns, problem.first, problem.last, problem.durations)],
        "sections": problem.sections,
        "capacity": capacity,
        "seed": seed,
        "seconds": deadline - time.monotonic(),
    }
    command = [sys.executable, "-c", START, json.dumps(sys.path)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, start_new_session=True) as child:  # an interrupt is for us
        text: str | None = json.dumps(task)
        try:
            while not stop() and time.monotonic() < deadline:
                try:
                    answer, _ = child.communicate(text, timeout=0.05)
                except subprocess.TimeoutExpired:
                    text = None
                    continue
                outcome, offsets = json.loads(answer)
                return cast("Outcome", outcome), tuple(offsets)
        finally:
            child.kill()
    return "stopped", ()


def main() -> None:
    """Main program of the child: reads a task from stdin, writes the outcome and the offsets to stdout."""
    task: dict[str, Any] = json.load(sys.stdin)
    sizes, aligns, first, last, durations = (np.array(values, np.int64) for values in task["arrays"])
    problem = Layout(task["unit"], sizes, aligns, first, last, task["sections"], durations)
    deadline = time.monotonic() + task["seconds"]
    json.dump(sweeps(problem, task["capacity"], task["seed"], deadline), sys.stdout)
