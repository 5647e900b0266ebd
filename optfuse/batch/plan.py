"""The tasks of a batch, with keys that tell whether a result on disk is still valid."""

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
#: What partitions a graph: a solver of ours, or Inductor's greedy fusion.
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
    """Limits of a task: ``seconds`` of wall time, ``gib`` (2**30 bytes) of private memory or None, ``threads``."""

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
        """The task's name in the run, such as "gpt2.training"."""
        return self.source.name if self.mode == "instance" else f"{self.source.name}.{self.mode}"

    @property
    def label(self) -> str:
        """The name in lines of progress."""
        return f"{self.name} capture"

    @property
    def graphs(self) -> tuple[str, ...]:
        """Names of the graphs that it yields."""
        return tuple(self.source.name + ending for ending in GRAPHS[self.mode])


@dataclass(frozen=True, slots=True)
class SolveTask:
    """Solve one prepared graph with one solver, and save its plan under ``run``/plans.

    ``options`` are the solver's; Inductor ignores them.
    """

    key: str
    capture: CaptureTask
    graph: str
    solver: BatchSolver
    options: SolveOptions

    @property
    def run(self) -> Path:
        """The folder of the run."""
        return self.capture.run

    @property
    def limits(self) -> Limits:
        """The limits of the capture, too."""
        return self.capture.limits

    @property
    def name(self) -> str:
        """The task's name in the run, such as "gpt2.backward/cpsat"."""
        return f"{self.graph}/{self.solver}"

    @property
    def label(self) -> str:
        """The name in lines of progress."""
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
    capture: CaptureTask, solvers: tuple[BatchSolver, ...], options: Mapping[str, Any]
) -> tuple[SolveTask, ...]:
    """Return a task for each graph and solver. ``options`` are the fields of ``SolveOptions`` except the solver."""
    tasks: list[SolveTask] = []
    for graph in capture.graphs:
        for solver in solvers:
            ours = "greedy" if solver == "inductor" else solver
            chosen = SolveOptions.from_mapping({**options, "solver": ours})
            key = _key(capture=capture.key, graph=graph, solver=solver, options=asdict(chosen))
            tasks.append(SolveTask(key, capture, graph, solver, chosen))
    return tuple(tasks)


@cache
def versions() -> tuple[tuple[str, str], ...]:
    """The packages that results depend on, and a digest of optfuse's own source."""
    return (("optfuse", __version__), ("source", code_digest()), *installed(*PACKAGES))


def _key(**parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
