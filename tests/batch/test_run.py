"""Whole batches over tiny models: every end is a row, and nothing ends the run."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import optfuse
from optfuse.batch.engines import LocalEngine
from optfuse.batch.plan import Limits
from optfuse.batch.store import Store
from optfuse.errors import BatchError
from optfuse.problem import check, load_instance, load_solution
from tests.batch.conftest import write_bad
from tests.batch.running import LIMITS, alive, batch, start, until

EXAMPLE = Path(__file__).parents[2] / "instances" / "example.json"


def by_name(run: Path) -> pd.DataFrame:
    return optfuse.read_run(run).set_index(["graph", "solver"])


@pytest.mark.slow
def test_graphs_by_solvers_with_plans(zoo: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    progress = batch([zoo, EXAMPLE], run, mode="both", solvers=("greedy", "cpsat"))

    rows = by_name(run)
    graphs = ("tiny.inference", "below/trained.inference", "below/trained.forward", "below/trained.backward", "example")
    assert set(rows.index) == {(graph, solver) for graph in graphs for solver in ("greedy", "cpsat")}
    assert (progress.done, progress.total, progress.failed) == (10, 10, 0)
    assert set(rows.outcome) == {"ok"}
    both = rows.unstack("solver")
    assert (both["objective", "greedy"] == both["greedy_objective", "cpsat"]).all()
    assert (both["objective", "cpsat"] <= both["objective", "greedy"]).all()
    assert (both["status", "cpsat"] == "OPTIMAL").all()
    plan = optfuse.load(run / rows.loc[("below/trained.backward", "cpsat"), "plan"])
    assert plan.name == "below/trained.backward"
    assert plan.objective == rows.loc[("below/trained.backward", "cpsat"), "objective"]
    solved = load_solution(run / rows.loc[("example", "cpsat"), "plan"] / "solution.json")
    assert check(load_instance(EXAMPLE), solved) == ()
    assert not list((run / "logs").iterdir())


def test_an_instance_by_solvers_with_plans(tmp_path: Path) -> None:
    run = tmp_path / "run"
    progress = batch([EXAMPLE], run, solvers=("greedy", "cpsat"))

    rows = by_name(run)
    assert set(rows.index) == {("example", "greedy"), ("example", "cpsat")}
    assert (progress.done, progress.total, progress.failed) == (2, 2, 0)
    both = rows.unstack("solver")
    assert (both["objective", "greedy"] == both["greedy_objective", "cpsat"]).all()
    assert (both["objective", "cpsat"] <= both["objective", "greedy"]).all()
    assert (both["status", "cpsat"] == "OPTIMAL").all()
    solved = load_solution(run / rows.loc[("example", "cpsat"), "plan"] / "solution.json")
    assert check(load_instance(EXAMPLE), solved) == ()
    assert not list((run / "logs").iterdir())


@pytest.mark.slow
def test_every_end_is_a_row(zoo: Path, tmp_path: Path) -> None:
    write_bad(zoo, "raising", "dying", "hungry")
    (zoo / "unloadable.py").write_text("import no_such_module\ndef model(): pass\ndef inputs(): pass")
    run = tmp_path / "run"
    progress = batch([zoo], run, limits=Limits(100.0, 2.0))

    rows = optfuse.read_run(run).set_index("graph")
    assert rows.outcome.to_dict() == {
        "tiny.inference": "ok",
        "below/trained.inference": "ok",
        "raising.inference": "refused",
        "dying.inference": "crash",
        "hungry.inference": "memory",
        "unloadable.inference": "refused",
    }
    assert progress.failed == 4
    for graph, words in {
        "raising.inference": "ValueError: no inputs today",
        "dying.inference": "SIGKILL",
        "hungry.inference": "limit was 2 GiB",
        "unloadable.inference": "no_such_module",
    }.items():
        assert words in rows.reason[graph]
        assert "\n" not in rows.reason[graph]
    assert "ValueError" in (run / "logs" / "raising.inference.log").read_text()


def test_a_hang_is_a_row(zoo: Path, tmp_path: Path) -> None:
    write_bad(zoo, "hanging")
    batch([zoo / "hanging.py"], tmp_path / "run", limits=Limits(1.0, None))

    (row,) = optfuse.read_run(tmp_path / "run").itertuples()
    assert (row.graph, row.outcome, row.stage) == ("hanging.inference", "timeout", "capture")
    assert row.reason == "killed at the limit of 1 s"
    assert row.wall_s >= 1


@pytest.mark.slow
def test_resume_does_what_is_missing_or_stale(zoo: Path, tmp_path: Path) -> None:
    write_bad(zoo, "dying")
    run = tmp_path / "run"
    batch([zoo], run)
    before = by_name(run)

    again = batch([zoo], run, resume=True)
    assert (again.kept, again.done) == (3, 3)
    assert by_name(run).finished.equals(before.finished)

    (zoo / "tiny.py").write_text((zoo / "tiny.py").read_text().replace("Tanh", "GELU"))
    batch([zoo], run, resume=True)
    changed = by_name(run).finished != before.finished
    assert list(changed[changed].index) == [("tiny.inference", "greedy")]

    more = batch([zoo], run, resume=True, solvers=("greedy", "exhaustive"))
    assert more.kept == 3
    assert len(by_name(run)) == 6

    retried = batch([zoo], run, resume=True, retry=True)
    assert (retried.done, retried.kept) == (3, 2)
    assert batch([zoo], run, resume=True, limits=Limits(99.0, None)).kept == 2
    assert batch([zoo], run, resume=True, solve={"seed": 1}, limits=Limits(99.0, None)).kept == 0


@pytest.mark.slow
def test_a_missing_plan_or_graph_is_made_again(zoo: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    batch([zoo], run)
    for part in ("plans", "graphs"):
        (run / part / "tiny.inference").rename(tmp_path / part)
        assert batch([zoo], run, resume=True).failed == 0
        assert (run / part / "tiny.inference").is_dir()


@pytest.mark.slow
def test_interrupt_leaves_a_usable_run(zoo: Path, tmp_path: Path) -> None:
    write_bad(zoo, "hanging")
    run = tmp_path / "run"
    process = start(zoo, "--out", run, "--size", "small", "--solvers", "greedy", "--mode", "inference", "--jobs", 2)
    until(lambda: (run / "run.json").exists() and len(optfuse.read_run(run)) == 2)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "--resume goes on from there" in said
    assert "Traceback" not in said
    assert set(optfuse.read_run(run).outcome) == {"ok"}
    (zoo / "hanging.py").unlink()
    assert batch([zoo], run, resume=True, solve={"time_limit": 30.0, "seed": 0}).kept == 2


@pytest.mark.slow
def test_kill_loses_only_what_is_in_flight(zoo: Path, tmp_path: Path) -> None:
    (zoo / "hanging.py").write_text(
        "import os, time\ndef model(): pass\ndef inputs():\n"
        f"    open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(1000)\n"
    )
    run = tmp_path / "run"
    process = start(zoo, "--out", run, "--size", "small", "--solvers", "greedy", "--mode", "inference", "--jobs", 2)
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
    until(lambda: len(optfuse.read_run(run)) == 2)
    process.kill()
    process.communicate()

    assert set(optfuse.read_run(run).outcome) == {"ok"}
    until(lambda: not alive([int((tmp_path / "pid").read_text())]), 20)
    (zoo / "hanging.py").unlink()
    assert batch([zoo], run, resume=True, solve={"time_limit": 30.0, "seed": 0}).kept == 2


def test_folders_that_are_no_run(zoo: Path, tmp_path: Path) -> None:
    with pytest.raises(BatchError, match="exists and is no run"):
        batch([zoo], zoo)
    with pytest.raises(BatchError, match="not the folder of a run"):
        optfuse.read_run(zoo)
    store = Store(tmp_path / "run", {}, resume=False)
    with pytest.raises(BatchError, match="add --resume"):
        Store(tmp_path / "run", {}, resume=False)
    with pytest.raises(BatchError, match="another batch writes to it"):
        Store(tmp_path / "run", {}, resume=True)
    store.close()
    assert optfuse.read_run(tmp_path / "run").empty


@pytest.fixture
def two_instances(tmp_path: Path) -> list[Path]:
    """Instances, which are solved without PyTorch."""
    paths = [tmp_path / "one.json", tmp_path / "two.json"]
    for path in paths:
        path.write_bytes(EXAMPLE.read_bytes())
    return paths


def test_a_full_disk_ends_the_run_and_keeps_its_rows(
    two_instances: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second row finds no room, and nor does a clean-up."""
    written: list[Path] = []
    write = pq.write_table

    def write_once(table: pa.Table, path: Path) -> None:
        if written:
            raise OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28] No space left on device")
        written.append(path)
        write(table, path)

    monkeypatch.setattr(pq, "write_table", write_once)
    run = tmp_path / "run"
    with pytest.raises(BatchError, match=r"run: cannot be written any more \(No space left on device\)"):
        batch(two_instances, run)
    monkeypatch.undo()

    assert len(optfuse.read_run(run)) == 1
    assert batch(two_instances, run, resume=True).kept == 1


def test_a_task_that_fails_on_a_full_disk_is_no_row(zoo: Path, tmp_path: Path) -> None:
    write_bad(zoo, "raising")
    run = tmp_path / "run"
    with pytest.raises(BatchError, match="make room on its disk"):
        batch([zoo / "raising.py"], run, room=1 << 62)  # no disk has so much
    assert optfuse.read_run(run).empty


def test_many_small_files_become_one(two_instances: list[Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    batch(two_instances, run)
    assert len(list((run / "results").iterdir())) == 2
    Store(run, {}, resume=True, compact_from=2).close()
    assert len(list((run / "results").iterdir())) == 1
    assert len(optfuse.read_run(run)) == 2


def test_an_engine_closes_with_its_tasks(zoo: Path, tmp_path: Path) -> None:
    from optfuse.batch.plan import capture_task
    from optfuse.batch.sources import find_sources

    write_bad(zoo, "hanging")
    (source,) = find_sources([zoo / "hanging.py"])
    engine = LocalEngine(1)
    engine.submit(capture_task(source, "inference", "small", "h200", tmp_path, LIMITS))
    assert engine.wait(0.2) == []
    engine.close()
    assert engine.wait(0.2) == []


@pytest.mark.slow
def test_inductor_is_a_solver_with_rows_of_its_own(zoo: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (zoo / "below" / "trained.py").unlink()
    batch([zoo, EXAMPLE], run, solvers=("greedy", "inductor"))

    rows = by_name(run)
    found, ours = rows.loc[("tiny.inference", "inductor")], rows.loc[("tiny.inference", "greedy")]
    assert (found.outcome, found.reason) == ("ok", "")
    assert found.greedy_objective == ours.objective
    assert ours.moved_bytes > 0
    assert found.moved_bytes > 0
    assert found.launches == found.kernels  # nothing in it needs to be split
    assert (found.unmapped, found.split, found.library_calls) == (0, 0, 1)
    assert 0.0 < found.agreement <= found.rand_index <= 1.0
    solution = load_solution(run / found.plan / "solution.json")
    assert check(load_instance(run / found.prepared / "instance.json"), solution) == ()
    refused = rows.loc[("example", "inductor")]
    assert refused.outcome == "refused"
    assert "an instance has no graph" in refused.reason

    again = batch([zoo, EXAMPLE], run, solvers=("greedy", "inductor"), resume=True)
    assert (again.kept, again.done) == (4, 4)
