"""Runs as pages. The runs are put together by hand: what a batch writes is tested beside."""

from __future__ import annotations

import base64
import datetime as dt
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from optfuse.batch.folders import graph_folder, plan_folder
from optfuse.batch.page import run_page
from optfuse.batch.store import Store
from optfuse.errors import BatchError, PlanError
from optfuse.problem.serialize import save_instance, save_solution
from optfuse.report.html.plans import plan_folders, read_plan
from tests.report.cases import example, solution_of

FINISHED = dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC)


def solved(run: Path, graph: str, solver: str = "cpsat") -> dict[str, Any]:
    """The row of a solved instance, whose files are in the run."""
    instance = example()
    greedy, chosen = solution_of(instance, ((0, 1), 1), ((2,), 2)), solution_of(instance, ((0, 1, 2), 2))
    graph_folder(run, graph).mkdir(parents=True, exist_ok=True)
    save_instance(instance, graph_folder(run, graph) / "instance.json")
    plan = plan_folder(run, graph, solver)
    plan.mkdir(parents=True)
    save_solution(chosen, plan / "solution.json")
    save_solution(greedy, plan / "greedy.json")
    figures = {
        "objective": chosen.objective,
        "bound": chosen.objective,
        "gap": 0.0,
        "greedy_objective": greedy.objective,
        "ops": 3,
        "proven": True,
        "solve_s": 0.5,
    }
    head = {"graph": graph, "solver": solver, "mode": "instance", "outcome": "ok", "finished": FINISHED}
    return {**head, **figures, "stage": "solve", "versions": '{"optfuse": "9.9"}', "plan": str(plan.relative_to(run))}


def failed(graph: str, reason: str) -> dict[str, Any]:
    head = {"graph": graph, "solver": "cpsat", "mode": "inference", "finished": FINISHED}
    return {**head, "outcome": "timeout", "stage": "solve", "reason": reason}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two solved graphs and one that was not."""
    folder = tmp_path / "run"
    store = Store(folder, {"sources": ["a"], "solvers": ["cpsat"], "solve": {"time_limit": 7.0}}, resume=False)
    store.add([solved(folder, "one"), solved(folder, "two"), failed("three.inference", "took <too> long")])
    store.close()
    return folder


def report_of(text: str) -> dict[str, Any]:
    """The data of a page's front."""
    return json.loads(text.split('id="report">', 1)[1].split("</script>", 1)[0])


def graph_of(text: str, position: int) -> dict[str, Any]:
    """The data of one of its graphs."""
    packed = text.split(f'id="graph-{position}">', 1)[1].split("</script>", 1)[0]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_each_graph_has_its_picture_and_what_failed_its_reason(run: Path) -> None:
    seen: list[tuple[int, int, str]] = []

    report = report_of(run_page(run, lambda *step: seen.append(step)))

    assert [(entry["graph"], entry["data"], entry["outcome"]) for entry in report["entries"]] == [
        ("one", 0, "ok"),
        ("three.inference", None, "timeout"),
        ("two", 1, "ok"),
    ]
    assert [(row["graph"], row["reason"]) for row in report["failures"]] == [("three.inference", "took <too> long")]
    assert ["time limit of a solve", "7 s"] in report["facts"]
    assert ["versions", "optfuse 9.9"] in report["facts"]
    assert seen[-1] == (3, 3, "two")


def test_a_plan_that_cannot_be_read_is_said_and_the_rest_is_shown(run: Path) -> None:
    (plan_folder(run, "one", "cpsat") / "solution.json").write_text("{")

    report = report_of(run_page(run))

    assert [entry["data"] for entry in report["entries"]] == [None, None, 0]
    (unread,) = [row for row in report["failures"] if row["stage"] == "report"]
    assert "solution.json" in unread["reason"]


def test_every_solver_of_a_graph_may_stand_beside(run: Path) -> None:
    store = Store(run, {}, resume=True)
    store.add([solved(run, "one", "inductor"), solved(run, "one", "greedy")])
    store.close()

    text = run_page(run)

    assert report_of(text)["entries"][0]["others"] == {"inductor": report_of(text)["entries"][0]["objective"]}
    assert [other["name"] for other in graph_of(text, 0)["beside"]] == ["greedy", "inductor"]


def test_an_empty_run_is_a_page(tmp_path: Path) -> None:
    Store(tmp_path / "run", {}, resume=False).close()

    assert report_of(run_page(tmp_path / "run"))["entries"] == []


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BatchError, match="not the folder of a run"):
        run_page(tmp_path)


def test_solutions_of_another_problem_are_refused(run: Path) -> None:
    instance = run / "graphs" / "one" / "instance.json"
    instance.write_text(instance.read_text().replace('"name": "exp"', '"name": "other"'))

    (folder,) = plan_folders(plan_folder(run, "one", "cpsat"))

    with pytest.raises(PlanError, match="answer another problem"):
        read_plan(folder, instance)
