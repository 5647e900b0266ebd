"""The result of a solve: the schedule, its objective, bound and gap, and statistics of the search."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from optfuse.problem.solution import Solution
from optfuse.solver.control.progress import Progress
from optfuse.solver.memory.launches import Sharing
from optfuse.solver.overlap.overlap import Overlap

Status = Literal["OPTIMAL", "FEASIBLE"]


def installed(*packages: str) -> tuple[tuple[str, str], ...]:
    """Those of some packages that are installed, with their versions."""
    found: list[tuple[str, str]] = []
    for package in packages:
        try:
            found.append((package, version(package)))
        except PackageNotFoundError:  # run from a source tree, or without a solver
            continue
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Statistics:
    """What happened on the way.

    Attributes:
        blocks: Independent parts of the instance.
        unique_blocks: Blocks that differ from each other; the others reuse an answer.
        candidates: Candidate kernels in the models solved.
        cuts: Constraints added because chosen kernels formed a cycle.
        rounds: Solves of the joint model, the first included.
        wall_s: Seconds of wall time.
        greedy_s: Seconds of it that greedy took.
        order_s: Seconds of it for the order and the memory plan.
        order_bound: Proven lower bound on peak bytes over all orders of the chosen kernels.
        order_proven: Whether no order of the chosen kernels has a lower peak.
        heuristic_peaks: Peak bytes of the chosen kernels in the orders that TorchInductor picks from, as pairs (name,
            bytes): "program", "dfs", "bfs", "lpmf" (least peak memory first). One that had no time is left out.
        arena_bound: Lower bound on the arena's bytes in the chosen order.
        given_up: One line for each thing that was not done or not proven, and why.
        search_s: Seconds of wall time for the search, between greedy and the order.
        stopped: Whether the solve was told to stop before the end.
        progress: Objective and bound over time.
        overlap: Computation and communication in time; None for a graph without collectives.
        sharing: Kernels that share launches; None where no two may.
    """

    blocks: int = 0
    unique_blocks: int = 0
    candidates: int = 0
    cuts: int = 0
    rounds: int = 0
    wall_s: float = 0.0
    greedy_s: float = 0.0
    order_s: float = 0.0
    order_bound: int = 0
    order_proven: bool = False
    heuristic_peaks: tuple[tuple[str, int], ...] = ()
    arena_bound: int = 0
    given_up: tuple[str, ...] = ()
    search_s: float = 0.0
    stopped: bool = False
    progress: tuple[Progress, ...] = ()
    overlap: Overlap | None = None
    sharing: Sharing | None = None


@dataclass(frozen=True, slots=True)
class SolveResult:
    """The best solution found and what is known of it. Times are picoseconds under the model.

    ``status`` is OPTIMAL only when ``bound == objective`` was proven for the whole instance. ``gap`` is
    (objective - bound) / objective, 0.0 when optimal. In all three each kernel has a launch of its own: what shared
    launches save, ``solution.saved_ps``, is decided with the order of the kernels (``statistics.sharing``).
    ``versions`` are pairs (package, version).
    """

    status: Status
    solution: Solution
    objective: int
    bound: int
    gap: float
    greedy_objective: int
    greedy_solution: Solution
    statistics: Statistics
    seed: int
    versions: tuple[tuple[str, str], ...]
