"""The tasks of a batch, and the keys that say whether a result found on disk is still the answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from optfuse.batch.sources import Source, source_digest
from optfuse.problem.device_files import load_device
from optfuse.solver.control.options import SolveOptions, Solver
from optfuse.solver.result import installed
from optfuse.version import __version__, code_digest

Size = Literal["full", "bench", "small"]
Mode = Literal["inference", "training", "instance"]
#: Who partitions a graph: a solver of ours, or Inductor by its own greedy fusion.
BatchSolver = Solver | Literal["inductor"]
SOLVERS: tuple[BatchSolver, ...] = (*get_args(Solver), "inductor")

#: Packages whose version a result depends on.
PACKAGES = ("torch", "triton", "transformers", "ortools", "sympy")

#: The graphs that a mode yields, as endings of their names. An instance is one graph, of its own name.
GRAPHS: dict[Mode, tuple[str, ...]] = {
    "inference": (".inference",),
    "training": (".forward", ".backward"),
    "instance": ("",),
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a task may take: ``seconds`` of wall time, ``gib`` of memory (2**30 bytes of private data; None: no limit).

    ``threads`` is how many a task may run.
    """

    seconds: float
    gib: float | None
    threads: int = 1


@dataclass(frozen=True, slots=True)
class CaptureTask:
    """Turn one mode of a source into prepared graphs under ``run``/graphs."""

    key: str
    source: Source
    mode: Mode
    size: Size
    device: str
    run: Path
    limits: Limits

    @property
    def name(self) -> str:
        """What the task is called in the run: "gpt2.training"."""
        return self.source.name if self.mode == "instance" else f"{self.source.name}.{self.mode}"

    @property
    def label(self) -> str:
        """What is shown to people."""
        return f"{self.name} capture"

    @property
    def graphs(self) -> tuple[str, ...]:
        """Names of the graphs that it yields."""
        return tuple(self.source.name + ending for ending in GRAPHS[self.mode])


@dataclass(frozen=True, slots=True)
class SolveTask:
    """Solve one prepared graph with one solver, and save its plan under ``run``/plans.

    ``options`` are the solver's; what Inductor does, they do not change.
    """

    key: str
    capture: CaptureTask
    graph: str
    solver: BatchSolver
    options: SolveOptions
    run: Path
    limits: Limits

    @property
    def name(self) -> str:
        """What the task is called in the run: "gpt2.backward/cpsat"."""
        return f"{self.graph}/{self.solver}"

    @property
    def label(self) -> str:
        """What is shown to people."""
        return f"{self.graph} {self.solver}"


Task = CaptureTask | SolveTask


def capture_task(source: Source, mode: Mode, size: Size, device: str, run: Path, limits: Limits) -> CaptureTask:
    """A task with the key of everything that its graphs depend on."""
    key = _key(
        source=source_digest(source),
        kind=source.kind,
        name=source.name,
        mode=mode,
        size=size,
        device=asdict(load_device(device)),
        versions=dict(versions()),
    )
    return CaptureTask(key, source, mode, size, device, run, limits)


def solve_tasks(
    capture: CaptureTask, solvers: tuple[BatchSolver, ...], options: Mapping[str, Any], limits: Limits
) -> tuple[SolveTask, ...]:
    """A task for each graph and solver of a capture. ``options`` are fields of ``SolveOptions`` but for the solver."""
    tasks: list[SolveTask] = []
    for graph in capture.graphs:
        for solver in solvers:
            ours = "greedy" if solver == "inductor" else solver
            chosen = SolveOptions.from_mapping({**options, "solver": ours})
            key = _key(capture=capture.key, graph=graph, solver=solver, options=asdict(chosen))
            tasks.append(SolveTask(key, capture, graph, solver, chosen, capture.run, limits))
    return tuple(tasks)


@cache
def versions() -> tuple[tuple[str, str], ...]:
    """The packages that results depend on, and a digest of optfuse's own source."""
    return (("optfuse", __version__), ("source", code_digest()), *installed(*PACKAGES))


def _key(**parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
