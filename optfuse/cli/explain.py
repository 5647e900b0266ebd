"""``optfuse explain``: why two ops of a saved plan share a kernel, or do not. Needs no PyTorch."""

from __future__ import annotations

import json as json_format
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optfuse.cli.options import JsonObject, Workers, solve_options
from optfuse.cli.output import print_json
from optfuse.errors import InvalidSolutionError, PlanError, RuleError
from optfuse.problem.checker import check
from optfuse.problem.instance import Instance
from optfuse.problem.op_patterns import one_op
from optfuse.problem.rules import with_rules
from optfuse.problem.serialize import load_instance, load_solution
from optfuse.problem.solution import Solution
from optfuse.problem.untrusted_folder import require_enclosed
from optfuse.rules import load_rules

if TYPE_CHECKING:
    from optfuse.compiler.extract.refusal_details import ExtractionDetails


def command(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="A plan's folder, a folder of plans, or an INSTANCE.json.")
    ],
    a: Annotated[str, typer.Argument(metavar="A", help="An op: its name, FX node, or the path of its module.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    solution: Annotated[
        Path | None, typer.Option(metavar="SOLUTION.json", help="The answer, where PLAN is an instance.")
    ] = None,
    rules: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="The rules that an instance was solved under.")
    ] = None,
    time_limit: Annotated[float, typer.Option(metavar="S", help="Seconds for each solve with a rule forced.")] = 30.0,
    workers: Workers = None,
    json: JsonObject = False,
) -> None:
    """Say why two ops share a kernel or do not: illegal and why, or what the opposite would cost, from a solve."""
    # ortools takes most of a second to import: `--help` does without.
    from optfuse.solver.explain.explain import explain

    options = solve_options(time_limit=time_limit, workers=workers)
    asked = _asked(plan, a, b, solution, rules)
    violations = check(asked.instance, asked.solution)
    if violations:
        raise InvalidSolutionError(f"{asked.where}: {violations[0].message}")
    found = explain(
        asked.instance, asked.solution, a, b, bound=asked.bound, options=options, details=_Details(asked.graph)
    )
    if json:
        print_json(found.to_plain())
    else:
        print(found)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A problem and its answer. ``bound`` and ``graph`` (the loop IR's file) where there is a whole plan."""

    where: Path
    instance: Instance
    solution: Solution
    bound: int | None = None
    graph: Path | None = None


def _asked(path: Path, a: str, b: str, solution: Path | None, rules: Path | None) -> _Asked:
    if not path.is_dir():
        if solution is None:
            raise PlanError(f"{path}: not a plan's folder; for an instance, name its answer with --solution")
        instance = with_rules(load_instance(path), () if rules is None else load_rules(rules))
        return _Asked(solution, instance, load_solution(solution))
    if solution is not None or rules is not None:
        raise PlanError(f"{path}: a plan has its own solution and rules; leave --solution and --rules out")
    require_enclosed(path)
    folders = [path] if (path / "instance.json").is_file() else sorted(f.parent for f in path.glob("*/instance.json"))
    if not folders:
        raise PlanError(f"{path}: holds no plan (no instance.json); save one with optimize --out")
    holding: list[_Asked] = []
    refusals: list[tuple[bool, RuleError]] = []
    for folder in folders:
        plan = _plan(folder)
        found_a = False
        try:
            one_op(plan.instance, a)
            found_a = True
            one_op(plan.instance, b)
        except RuleError as error:
            refusals.append((found_a, error))
        else:
            holding.append(plan)
    if not holding:
        # A plan that has the one op is nearer to what was meant than a plan that has none.
        raise max(refusals, key=lambda refusal: refusal[0])[1]
    if len(holding) > 1:
        names = ", ".join(str(plan.where.parent) for plan in holding)
        raise PlanError(f"{a!r} and {b!r} are in several plans: {names}; name one of these folders")
    return holding[0]


def _plan(folder: Path) -> _Asked:
    require_enclosed(folder)
    instance, solution = load_instance(folder / "instance.json"), load_solution(folder / "solution.json")
    graph = folder / "graph.json"
    return _Asked(
        folder / "solution.json", instance, solution, _bound(folder / "plan.json"), graph if graph.is_file() else None
    )


def _bound(path: Path) -> int | None:
    """The proven bound that a plan noted; None where there is none."""
    if not path.is_file():
        return None
    try:
        return int(json_format.loads(path.read_text(encoding="utf-8"))["result"]["bound"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise PlanError(f"{path}: malformed ({type(error).__name__}: {error}); save the plan again") from error


class _Details:
    """The loop IR's reasons, read only when one is asked for."""

    def __init__(self, graph: Path | None) -> None:
        self.graph = graph
        self.found: ExtractionDetails | None = None

    def edge(self, source: int, target: int, scheme: int) -> str | None:
        """As ``Details`` says."""
        details = self._details()
        return None if details is None else details.edge(source, target, scheme)

    def no_scheme(self, left: int, right: int) -> str | None:
        """As ``Details`` says."""
        details = self._details()
        return None if details is None else details.no_scheme(left, right)

    def _details(self) -> ExtractionDetails | None:
        if self.found is None and self.graph is not None:
            self.found = _extracted(self.graph)
        return self.found


def _extracted(path: Path) -> ExtractionDetails:
    """Extract the problem again from the loop IR beside it.

    Raises:
        PlanError: When the file is malformed, or states another problem.
    """
    from optfuse.compiler.extract.extraction import extract
    from optfuse.compiler.extract.refusal_details import ExtractionDetails
    from optfuse.compiler.ir.graph_json import graph_from_json

    try:
        graph = graph_from_json(json_format.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise PlanError(f"{path}: cannot be read: {error}; save the plan again") from error
    instance = load_instance(path.with_name("instance.json"))
    extraction = extract(graph, instance.devices[0])
    same = [op.name for op in extraction.instance.ops] == [op.name for op in instance.ops]
    if not same or extraction.instance.schemes != instance.schemes or extraction.instance.edges != instance.edges:
        raise PlanError(f"{path}: states another problem than instance.json; save the plan again")
    return ExtractionDetails(extraction)
