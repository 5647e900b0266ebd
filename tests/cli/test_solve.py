from __future__ import annotations

import csv
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optfuse.problem.instance import Instance
from optfuse.problem.serialize import instance_to_json
from optfuse.report.rows import COLUMNS
from tests.cli.conftest import Outcome
from tests.layered import build
from tests.report.cases import EXAMPLE, example
from tests.report.test_summary import PROMISED

Run = Callable[..., Outcome]

QUICK = ("--time-limit", 10, "--workers", 1, "--seed", 0)


@pytest.mark.parametrize("solver", ["cpsat", "greedy", "exhaustive"])
def test_every_solver_answers_and_the_checker_accepts(optfuse: Run, tmp_path: Path, solver: str) -> None:
    solved = optfuse("solve", EXAMPLE, "--solver", solver, "--out", tmp_path / "s.json", *QUICK)
    checked = optfuse("check", EXAMPLE, tmp_path / "s.json")

    assert solved.code == 0, solved.err
    assert checked.code == 0, checked.err
    assert [path.name for path in tmp_path.iterdir()] == ["s.json"]


def test_json_is_one_object_with_every_promised_key(optfuse: Run, tmp_path: Path) -> None:
    outcome = optfuse("solve", EXAMPLE, "--json", "--out", tmp_path / "s.json", *QUICK)

    record = json.loads(outcome.out)
    assert set(PROMISED) <= record.keys()
    assert (record["name"], record["status"], record["ops"]) == ("example", "OPTIMAL", 3)
    assert record["objective"] == record["bound"] <= record["greedy_objective"]
    assert record["peak_memory_proven"]
    assert (
        record["peak_memory_bound"] == record["peak_memory_bytes"] <= min(record["peak_memory_by_heuristic"].values())
    )
    assert list(record["peak_memory_by_heuristic"]) == ["program", "dfs", "bfs", "lpmf"]
    assert "s.json" in outcome.err


def test_a_page_and_a_trace_are_written_beside_the_table(optfuse: Run, tmp_path: Path) -> None:
    outcome = optfuse("solve", EXAMPLE, "--html", tmp_path / "s.html", "--trace", tmp_path / "t.json", *QUICK)

    assert outcome.code == 0, outcome.err
    assert "<title>s</title>" in (tmp_path / "s.html").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "t.json").read_text())["otherData"]["graph"] == "example"
    several = optfuse("solve", EXAMPLE, EXAMPLE, "--trace", tmp_path / "t.json", *QUICK)
    assert "a trace is of one instance" in several.error_line()
    nowhere = optfuse("solve", EXAMPLE, "--html", tmp_path / "no" / "s.html", *QUICK)
    assert "name another with --html" in nowhere.error_line()


def test_the_table_names_the_graph_and_the_model_of_the_proof(optfuse: Run) -> None:
    outcome = optfuse("solve", EXAMPLE, *QUICK)

    assert "example" in outcome.out
    assert "proven optimal for the stated model" in outcome.out


def test_solve_and_check_need_no_torch(tmp_path: Path) -> None:
    blocked = "import sys; sys.modules.update(dict.fromkeys(('torch', 'triton', 'sympy', 'transformers')));"
    commands = (
        ["optfuse", "solve", str(EXAMPLE), "--out", str(tmp_path / "s.json"), "--workers", "1"],
        ["optfuse", "check", str(EXAMPLE), str(tmp_path / "s.json")],
    )
    code = f"""{blocked} from optfuse.cli import main
for sys.argv in {commands!r}:
    try:
        main()
    except SystemExit as end:
        assert end.code == 0
    else:
        raise AssertionError("main returns")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def broken(change: Callable[[dict[str, Any]], None]) -> str:
    data = json.loads(instance_to_json(example()))
    change(data)
    return json.dumps(data)


def cyclic(instance: Instance) -> str:
    back = replace(instance.edges[0], src=1, dst=0, buffer=None, schemes=())
    return instance_to_json(replace(instance, edges=(*instance.edges, back)))


BAD = {
    "not JSON": "{",
    "cycle": cyclic(example()),
    "version 99": broken(lambda data: data.update(version=99)),
    "negative": broken(lambda data: data["buffers"][1].update(bytes=-4)),
    "named 'exp'": broken(lambda data: data["ops"][1].update(name="exp")),
    "buffer 77 does not exist": broken(lambda data: data["edges"][0].update(buffer=77)),
    "schemess: unknown key": broken(lambda data: data.update(schemess=[])),
    "ops[0].offers: missing": broken(lambda data: data["ops"][0].pop("offers")),
    "expected a whole number, got '4'": broken(lambda data: data["buffers"][0].update(bytes="4")),
    "expected a whole number, got nan": broken(lambda data: data["buffers"][0].update(bytes=math.nan)),
    "expected a whole number, got None": broken(lambda data: data["buffers"][0].update(bytes=None)),
    "bytes is above 2**53": broken(lambda data: data["buffers"][0].update(bytes=10**400)),
    "too much to compare schedules exactly": broken(lambda data: data["devices"][0].update(launch_ps=1 << 53)),
}


@pytest.mark.parametrize("reason", BAD)
def test_a_bad_instance_is_refused_with_its_reason(optfuse: Run, tmp_path: Path, reason: str) -> None:
    (tmp_path / "bad.json").write_text(BAD[reason])

    line = optfuse("solve", tmp_path / "bad.json", "--out", tmp_path / "s.json").error_line()

    assert reason in line
    assert "bad.json" in line or "'example'" in line
    assert [path.name for path in tmp_path.iterdir()] == ["bad.json"]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--time-limit", 0), "time_limit"),
        (("--time-limit", "nan"), "time_limit"),
        (("--time-limit", -1), "time_limit"),
        (("--time-limit", "soon"), "--time-limit"),
        (("--solvr", "greedy"), "--solver"),
        (("--workers", 0), "workers"),
        (("--seed", -1), "seed"),
        (("--solver", "magic"), "cpsat, greedy, exhaustive"),
    ],
)
def test_a_value_out_of_range_is_refused(optfuse: Run, flags: tuple[object, ...], reason: str) -> None:
    assert reason in optfuse("solve", EXAMPLE, *flags).error_line()


def test_a_place_that_cannot_be_written_is_named(optfuse: Run, tmp_path: Path) -> None:
    outcome = optfuse("solve", EXAMPLE, "--out", tmp_path / "missing" / "s.json", *QUICK)

    assert "missing" in outcome.error_line()
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_file_is_not_replaced_by_one(optfuse: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    line = optfuse("solve", EXAMPLE, "--out", tmp_path / "pipe", *QUICK).error_line()

    assert "pipe: cannot be written" in line
    assert (tmp_path / "pipe").is_fifo()


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    """Two instance files, one of them with a kind in its name, beside an empty folder ``out``."""
    (tmp_path / "out").mkdir()
    paths = []
    for name in ("small.backward", "plain"):
        path = tmp_path / f"{name}.json"
        path.write_text(instance_to_json(replace(example(), name=name)))
        paths.append(path)
    return paths


def test_several_instances_make_a_row_each(optfuse: Run, two: list[Path], tmp_path: Path) -> None:
    outcome = optfuse("solve", *two, "--csv", tmp_path / "all.csv", "--out", tmp_path / "out", *QUICK)

    assert outcome.code == 0, outcome.err
    with (tmp_path / "all.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [tuple(row)[:9] for row in rows] == [COLUMNS] * 2
    assert [(row["name"], row["kind"], row["ops"]) for row in rows] == [
        ("small.backward", "backward", "3"),
        ("plain", "", "3"),
    ]
    assert all(row["status"] == "OPTIMAL" and row["objective"] == row["bound"] for row in rows)
    saved = sorted((tmp_path / "out").iterdir())
    assert [path.name for path in saved] == ["plain.solution.json", "small.backward.solution.json"]
    assert optfuse("check", two[1], saved[0]).code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.csv", "out", "plain.json", "small.backward.json"]


def test_several_instances_are_a_list_in_json(optfuse: Run, two: list[Path]) -> None:
    outcome = optfuse("solve", *two, "--json", *QUICK)

    records = json.loads(outcome.out)
    assert [record["name"] for record in records] == ["small.backward", "plain"]
    assert all(record["progress"][-1][1] == "done" for record in records)


def test_several_solutions_need_a_folder(optfuse: Run, two: list[Path], tmp_path: Path) -> None:
    assert "no such folder" in optfuse("solve", *two, "--out", tmp_path / "s.json", *QUICK).error_line()
    assert "--csv" in optfuse("solve", *two, "--csv", tmp_path / "missing" / "o.csv", *QUICK).error_line()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_the_best_found(tmp_path: Path, number: signal.Signals) -> None:
    """The instance in hand is brought to an end, the next is left; what was found is saved."""
    paths = [tmp_path / "hard.json", tmp_path / "next.json"]
    paths[0].write_text(instance_to_json(replace(build(0, 200), name="hard")))
    paths[1].write_text(instance_to_json(example()))
    (tmp_path / "out").mkdir()
    # The first line that the journal would show stands for "it has begun to search".
    code = (
        "import sys, optfuse.solver.control.progress as p; note = p.Journal.note\n"
        "def loud(self, *a):\n    note(self, *a); print('begun', flush=True)\n"
        "p.Journal.note = loud\n"
        f"sys.argv = ['optfuse', 'solve', *{list(map(str, paths))!r}, '--time-limit', '600', '--workers', '1', "
        f"'--out', {str(tmp_path / 'out')!r}, '--csv', {str(tmp_path / 'o.csv')!r}]\n"
        "from optfuse.cli import main; main()"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as running:  # type: ignore[call-overload]
        assert running.stdout.readline() == "begun\n"
        running.send_signal(number)
        out, err = running.communicate(timeout=120)
    assert running.returncode == 0, err
    assert "FEASIBLE" in out
    assert "stopped before the end, as asked" in out
    assert "stopped after 1 of 2 instances" in err
    assert (tmp_path / "o.csv").read_text().splitlines()[1].startswith("hard,,200,")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["hard.solution.json"]
