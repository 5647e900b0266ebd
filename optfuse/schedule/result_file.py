"""What a solve proved, as plain data beside its two solutions: for plans, and kept between processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from optfuse.problem.solution import Solution
from optfuse.solver.control.progress import Progress, relative_gap
from optfuse.solver.memory.launches import Sharing
from optfuse.solver.overlap.overlap import Overlap
from optfuse.solver.result import SolveResult, Statistics


def result_to_plain(result: SolveResult) -> dict[str, Any]:
    """All but the solutions, ready for JSON."""
    return {
        "status": result.status,
        "objective": result.objective,
        "bound": result.bound,
        "gap": result.gap,
        "greedy_objective": result.greedy_objective,
        "statistics": asdict(result.statistics),
        "seed": result.seed,
        "versions": [list(pair) for pair in result.versions],
    }


def result_from_plain(data: Mapping[str, Any], solution: Solution, greedy: Solution) -> SolveResult:
    """The result that ``result_to_plain`` wrote, with its solutions.

    Raises:
        ValueError: If the figures are not those of the solutions.
        KeyError, TypeError: For other data than that.
    """
    bound, objective = int(data["bound"]), solution.objective
    status = "OPTIMAL" if bound == objective else "FEASIBLE"
    figures = (int(data["objective"]), int(data["greedy_objective"]), data["status"])
    if figures != (objective, greedy.objective, status) or not 0 <= bound <= objective:
        raise ValueError("its figures are not those of the solutions beside it")
    return SolveResult(
        status=status,
        solution=solution,
        objective=objective,
        bound=bound,
        gap=relative_gap(objective, bound),
        greedy_objective=greedy.objective,
        greedy_solution=greedy,
        statistics=_statistics(data["statistics"]),
        seed=int(data["seed"]),
        versions=tuple((str(a), str(b)) for a, b in data["versions"]),
    )


def _statistics(data: Mapping[str, Any]) -> Statistics:
    tuples: dict[str, Any] = {
        "given_up": tuple(data["given_up"]),
        "heuristic_peaks": tuple((str(name), int(peak)) for name, peak in data["heuristic_peaks"]),
        "progress": tuple(Progress(**record) for record in data["progress"]),
        "overlap": None if data.get("overlap") is None else Overlap(**data["overlap"]),
        "sharing": None if data.get("sharing") is None else Sharing(**data["sharing"]),
    }
    return Statistics(**{**data, **tuples})
