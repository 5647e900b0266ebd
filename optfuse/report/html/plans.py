"""Plans on disk, read for a report: the problem, both answers, and the emitted text. Needs no PyTorch, runs nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from optfuse.errors import OptfuseError, PlanError
from optfuse.problem.instance import Instance
from optfuse.problem.serialize import digest, load_instance, load_solution
from optfuse.problem.solution import Solution
from optfuse.problem.untrusted_folder import require_enclosed
from optfuse.solver.control.progress import Progress, relative_gap
from optfuse.solver.memory.launches import Sharing
from optfuse.solver.overlap.overlap import Overlap
from optfuse.solver.result import SolveResult, Statistics


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan's problem and result, and its module ("" where there is none)."""

    instance: Instance
    result: SolveResult
    source: str


def read_plan(folder: Path, instance_file: Path | None = None, bound: int | None = None) -> StoredPlan:
    """Read a plan, or an instance with its solutions.

    Args:
        folder: Has solution.json and greedy.json, and of a whole plan instance.json, plan.json and kernels.py.
        instance_file: The instance, where the folder has none.
        bound: The proven bound, where the folder has no plan.json.

    Raises:
        PlanError: When a file is missing or malformed or a link out of the folder, or the solutions answer another
            problem.
    """
    require_enclosed(folder)
    own = folder / "instance.json"
    try:
        instance = load_instance(own if instance_file is None or own.is_file() else instance_file)
        solution, greedy = load_solution(folder / "solution.json"), load_solution(folder / "greedy.json")
        source = read_source(folder)
    except PlanError:
        raise
    except OptfuseError as error:
        raise PlanError(str(error)) from error
    own_digest = digest(instance)
    if any(answer.instance_digest != own_digest for answer in (solution, greedy)):
        raise PlanError(f"{folder}: its solutions answer another problem than its instance.json; make the plan again")
    return StoredPlan(instance, _result(folder / "plan.json", solution, greedy, bound), source)


def plan_folders(folder: Path) -> list[Path]:
    """The plan that a folder is, or those that it holds.

    Raises:
        PlanError: When a link leads out of the folder.
    """
    require_enclosed(folder)
    if (folder / "solution.json").is_file():
        return [folder]
    return sorted(path.parent for path in folder.glob("*/solution.json"))


def read_source(folder: Path) -> str:
    """The emitted module of a plan; "" where there is none.

    Raises:
        PlanError: When it cannot be read.
    """
    path = folder / "kernels.py"
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else ""
    except (OSError, ValueError) as error:
        raise PlanError(f"{path}: cannot be read ({error})") from error


def read_solution(path: Path, plan: StoredPlan) -> Solution:
    """Another solver's answer to a plan's problem.

    Raises:
        PlanError: When the file is missing or malformed, or answers another problem.
    """
    try:
        solution = load_solution(path)
    except OptfuseError as error:
        raise PlanError(str(error)) from error
    if solution.instance_digest != plan.result.solution.instance_digest:
        raise PlanError(f"{path}: answers another problem than the plan beside it; make the run again")
    return solution


def _result(path: Path, solution: Solution, greedy: Solution, bound: int | None) -> SolveResult:
    found: dict[str, Any] = {}
    if path.is_file():
        try:
            found = json.loads(path.read_text(encoding="utf-8"))["result"]
            bound = int(found["bound"])
            statistics = _statistics(found["statistics"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise PlanError(f"{path}: malformed ({type(error).__name__}: {error}); save the plan again") from error
    else:
        statistics = Statistics()
    known = 0 if bound is None else min(bound, solution.objective)
    return SolveResult(
        status="OPTIMAL" if known == solution.objective else "FEASIBLE",
        solution=solution,
        objective=solution.objective,
        bound=known,
        gap=relative_gap(solution.objective, known),
        greedy_objective=greedy.objective,
        greedy_solution=greedy,
        statistics=statistics,
        seed=int(found.get("seed", 0)),
        versions=tuple((str(name), str(version)) for name, version in found.get("versions", ())),
    )


def _statistics(data: dict[str, Any]) -> Statistics:
    """Those figures that the plan has: one of an older version has fewer."""
    known = {field.name for field in fields(Statistics)}
    kept = {name: value for name, value in data.items() if name in known}
    kept["given_up"] = tuple(kept.get("given_up", ()))
    kept["heuristic_peaks"] = tuple((str(name), int(peak)) for name, peak in kept.get("heuristic_peaks", ()))
    kept["progress"] = tuple(Progress(**record) for record in kept.get("progress", ()))
    kept["overlap"] = None if kept.get("overlap") is None else Overlap(**kept["overlap"])
    kept["sharing"] = None if kept.get("sharing") is None else Sharing(**kept["sharing"])
    return Statistics(**kept)
