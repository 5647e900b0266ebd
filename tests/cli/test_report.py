"""``optfuse report``: a run and a plan as a page, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from optfuse.batch.store import Store
from optfuse.problem.serialize import save_instance, save_solution
from tests.cli.conftest import Outcome
from tests.report.cases import example, solution_of


def test_a_run_is_a_page(optfuse: Callable[..., Outcome], tmp_path: Path) -> None:
    Store(tmp_path / "run", {}, resume=False).close()

    done = optfuse("report", tmp_path / "run", "--html", tmp_path / "page.html")

    assert done.code == 0
    assert done.out.startswith(f"{tmp_path / 'page.html'}: 0.")
    assert "<title>Run run</title>" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_folder_of_plans_is_a_page(optfuse: Callable[..., Outcome], tmp_path: Path) -> None:
    instance = example()
    solution = solution_of(instance, ((0, 1, 2), 2))
    for name in ("a", "b"):
        plan = tmp_path / "plans" / name
        plan.mkdir(parents=True)
        save_instance(instance, plan / "instance.json")
        save_solution(solution, plan / "solution.json")
        save_solution(solution, plan / "greedy.json")

    assert optfuse("report", tmp_path / "plans", "--html", tmp_path / "page.html").code == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert '"graph":"a"' in text
    assert '"graph":"b"' in text
    assert optfuse("report", tmp_path / "plans" / "a", "--html", tmp_path / "one.html").code == 0
    (tmp_path / "plans" / "a" / "greedy.json").unlink()
    line = optfuse("report", tmp_path / "plans", "--html", tmp_path / "bad.html").error_line()
    assert "greedy.json" in line
    assert not (tmp_path / "bad.html").exists()


def test_bad_input_is_one_line(optfuse: Callable[..., Outcome], tmp_path: Path) -> None:
    Store(tmp_path / "run", {}, resume=False).close()
    page = tmp_path / "page.html"

    assert "no such folder" in optfuse("report", tmp_path / "nothing", "--html", page).error_line()
    assert "not the folder of a run" in optfuse("report", tmp_path, "--html", page).error_line()
    missing = tmp_path / "missing" / "page.html"
    assert "there is no folder" in optfuse("report", tmp_path / "run", "--html", missing).error_line()
    assert "is a folder" in optfuse("report", tmp_path / "run", "--html", tmp_path).error_line()
    assert "--html" in optfuse("report", tmp_path / "run").error_line()
    rows = tmp_path / "rows.json"
    rows.write_text('{"name": 1}')
    for extra in ("--bench", "--pareto"):
        line = optfuse("report", tmp_path / "run", "--html", page, extra, rows).error_line()
        assert f"rows.json: not what optfuse {extra[2:]} --json writes" in line
    (tmp_path / "run" / "run.json").write_text('{"format": "optfuse-run", "version": 99}')
    assert "another version" in optfuse("report", tmp_path / "run", "--html", page).error_line()
    assert not page.exists()
