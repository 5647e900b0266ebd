"""A run as a page: its rows, and the plans of the solver that is shown beside greedy."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from optfuse.batch.folders import graph_folder, plan_folder
from optfuse.batch.store import read_table, require_run
from optfuse.errors import PlanError
from optfuse.problem.solution import Solution
from optfuse.report.html.entries import entries, failures, main_solver, progress_records
from optfuse.report.html.graph import graph_data
from optfuse.report.html.page import pack, page
from optfuse.report.html.plans import StoredPlan, read_plan, read_solution, read_source

#: Called with the number of graphs done, of all graphs, and the last one's name.
Watch = Callable[[int, int, str], None]


def run_page(run: Path, watch: Watch | None = None, extras: Mapping[str, Any] | None = None) -> str:
    """The page of a run, finished or not, and ``extras``. A plan that cannot be read is listed with its reason.

    Raises:
        BatchError: If the folder is no run.
    """
    require_run(run)
    rows = read_table(run).to_pylist()
    by_graph: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_graph.setdefault(row["graph"], []).append(row)
    graphs: dict[str, str] = {}
    unread: list[dict[str, Any]] = []
    for done, (graph, mine) in enumerate(by_graph.items(), 1):
        row = next(row for row in mine if row["solver"] == main_solver(row["solver"] for row in mine))
        if row["plan"] is not None:
            try:
                plan = _plan(run, row)
                others, greedy_source = _others(run, plan, [other for other in mine if other is not row])
            except PlanError as error:
                unread += failures([{**row, "stage": "report", "outcome": "unread plan", "reason": str(error)}])
            else:
                graphs[graph] = pack(graph_data(plan.instance, plan.result, plan.source, greedy_source, others))
                row["progress"] = progress_records(plan.result)
        if watch is not None:
            watch(done, len(by_graph), graph)
    return page(
        f"Run {run.resolve().name}",
        entries(rows),
        graphs,
        failures=[*failures(rows), *unread],
        facts=_facts(run, rows),
        extras=extras,
    )


def _plan(run: Path, row: Mapping[str, Any]) -> StoredPlan:
    instance = graph_folder(run, row["graph"]) / "instance.json"
    return read_plan(plan_folder(run, row["graph"], row["solver"]), instance, row["bound"])


def _others(run: Path, plan: StoredPlan, rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Solution], str]:
    """The other solvers' solutions, and what was emitted for greedy's, which the plan has itself."""
    solutions: dict[str, Solution] = {}
    greedy_source = ""
    for row in rows:
        folder = plan_folder(run, row["graph"], row["solver"])
        if row["plan"] is None:
            continue
        if row["solver"] == "greedy":
            greedy_source = read_source(folder)
        else:
            solutions[row["solver"]] = read_solution(folder / "solution.json", plan)
    return solutions, greedy_source


def _facts(run: Path, rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The run's settings, from its own record."""
    settings = json.loads((run / "run.json").read_text(encoding="utf-8"))
    solve = settings.get("solve") or {}
    said = [
        ("sources", str(len(settings.get("sources") or ()))),
        ("solvers", ", ".join(settings.get("solvers") or ())),
        ("device", str(settings.get("device", ""))),
        ("size", str(settings.get("size", ""))),
        ("time limit of a solve", f"{solve['time_limit']:g} s" if "time_limit" in solve else ""),
        ("seed", str(solve.get("seed", ""))),
    ]
    times = [row["finished"] for row in rows if row["finished"] is not None]
    if times:
        said.append(("made", f"{min(times):%Y-%m-%d %H:%M} to {max(times):%Y-%m-%d %H:%M} UTC"))
    for text in sorted({row["versions"] for row in rows if row["versions"]}):
        said.append(("versions", ", ".join(f"{name} {version}" for name, version in json.loads(text).items())))
    return [(name, value) for name, value in said if value]
