"""Files from strangers: reading one runs nothing, imports nothing, and opens nothing outside of its folder.

``OPEN`` reads hostile files of every kind in a process that writes down what Python's audit events say of it.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import optfuse
from optfuse.batch.folders import file_name, graph_folder, plan_folder
from optfuse.batch.page import run_page
from optfuse.batch.read import read_run
from optfuse.batch.store import Store
from optfuse.compiler.frontend.graphnet import read_metas
from optfuse.errors import BatchError, OptfuseError, PlanError
from optfuse.report.html.extras import bench_extra, pareto_extra
from optfuse.report.html.plans import read_plan
from optfuse.report.html.solved import solved_page
from optfuse.runtime.environment import mode
from tests.hostile import add_rows, hostile_files
from tests.oracle.judging import GREEDY
from tests.schedule.test_plan import Net, batch

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")


@pytest.fixture(scope="module")
def schedule() -> optfuse.Schedule:
    torch.manual_seed(0)
    return optfuse.optimize(Net(), (batch(),), {"scale": 0.5}, options=GREEDY, name="net")


@pytest.fixture
def folder(schedule: optfuse.Schedule, tmp_path: Path) -> Path:
    schedule.save(tmp_path / "plan")
    return tmp_path / "plan"


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """What hostile code makes, if it runs."""
    return tmp_path / "ran"


# --- links and paths ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["kernels.py", "graph.json", "weights.safetensors", "solution.json", "extra"])
def test_links_that_lead_out_of_a_plan(folder: Path, tmp_path: Path, part: str) -> None:
    """A report would quote a private file as a plan's kernels."""
    private = tmp_path / "private"
    private.write_text("what is mine")
    (folder / part).unlink(missing_ok=True)
    (folder / part).symlink_to(private)
    for read in (optfuse.load, read_plan):
        with pytest.raises(PlanError, match="leads out of"):
            read(folder)


def test_links_within_a_plan_and_to_it_are_its_own(folder: Path, tmp_path: Path) -> None:
    (folder / "report.txt").rename(folder / "words.txt")
    (folder / "report.txt").symlink_to("words.txt")
    (tmp_path / "linked").symlink_to(folder)
    assert optfuse.load(tmp_path / "linked").name == "net"


def test_what_is_no_file_is_not_waited_for(folder: Path) -> None:
    (folder / "kernels.py").unlink()
    os.mkfifo(folder / "kernels.py")
    with pytest.raises(PlanError, match="neither a file nor a folder"):
        optfuse.load(folder)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run without results."""
    run = tmp_path / "run"
    Store(run, {}, resume=False).close()
    return run


@pytest.mark.parametrize("name", ["..", ".", "", "../../x", "/etc", "a/b", "..."])
def test_names_in_a_run_lead_nowhere(tmp_path: Path, name: str) -> None:
    assert graph_folder(tmp_path, name).parent == tmp_path / "graphs"
    assert plan_folder(tmp_path, name, name).parent.parent == tmp_path / "plans"
    for path in (graph_folder(tmp_path, name), plan_folder(tmp_path, name, name)):
        assert path.resolve() == path
    assert file_name("gpt2.forward") == "gpt2.forward"


def test_rows_of_a_run_read_no_other_plan(run: Path, schedule: optfuse.Schedule, tmp_path: Path) -> None:
    """A solver's name was part of a path: a page would hold a private plan's kernels."""
    schedule.save(tmp_path / "private")
    (tmp_path / "private" / "kernels.py").write_text("what is mine")
    outside = os.path.relpath(tmp_path / "private", run / "plans" / "g")
    (run / "plans" / "g").mkdir(parents=True)
    add_rows(run, {"graph": "g", "solver": outside, "outcome": "ok", "plan": "plans/g", "bound": 0})
    read: list[str] = []
    opened = Path.read_text

    def noted(path: Path, *args: Any, **kwargs: Any) -> str:
        read.append(str(path))
        return opened(path, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "read_text", noted)
        assert "unread plan" in run_page(run)
    assert read
    assert not any("private" in path for path in read)


def test_rows_of_a_run_unpickle_nothing(run: Path, ran: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (ran,)

    for name in (b"arrow.py_extension_type", b"arrow.extension"):
        extension = {b"ARROW:extension:name": name, b"ARROW:extension:metadata": pickle.dumps(Evil())}
        add_rows(run, {"graph": "g", "solver": "cpsat"}, metadata=extension)
        assert len(read_run(run)) == 1
    assert not ran.exists()


@pytest.mark.parametrize("part", ["lock", "run.json", "results", "logs/x.log", "plans/g"])
def test_a_run_writes_through_no_link(run: Path, tmp_path: Path, part: str) -> None:
    """Going on with an untrusted run truncated what its lock or a log was a link to."""
    private = tmp_path / "private"
    private.write_text("what is mine" if part != "run.json" else (run / "run.json").read_text())
    before = private.read_text()
    target = run / part
    target.parent.mkdir(exist_ok=True)
    if target.is_dir():
        target.rmdir()
    target.unlink(missing_ok=True)
    target.symlink_to(private)
    with pytest.raises(BatchError, match="leads out of"):
        Store(run, {}, resume=True)
    with pytest.raises(BatchError, match="leads out of"):
        read_run(run)
    assert private.read_text() == before


# --- other files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "class A:\n    name = __import__('pathlib').Path('{ran}').touch()\n",
        "__import__('pathlib').Path('{ran}').touch()\nclass A:\n    name = 'a'\n    shape = [1]\n    dtype = 'x'\n",
        "class A:\n    name = 'a'\n    shape = [1]\n    dtype = 'torch.load'\n",
        "class A:\n    name = 'a'\n    shape = [1]\n    dtype = 'torch.float32'\n    std = float(open('{ran}', 'w'))\n",
    ],
)
def test_meta_files_of_a_sample_are_read_and_not_run(tmp_path: Path, ran: Path, text: str) -> None:
    (tmp_path / "weight_meta.py").write_text(text.format(ran=ran))
    with pytest.raises(OptfuseError):
        read_metas(tmp_path / "weight_meta.py")
    assert not ran.exists()


OPEN = """
import contextlib, json, os, sys
from pathlib import Path

jobs = json.loads(Path(sys.argv[1]).read_text())
import optfuse
from optfuse.batch.page import run_page
from optfuse.batch.read import read_run
from optfuse.cli import calibrate, explain, pack
from optfuse.problem.device_files import load_device
from optfuse.compiler.frontend.graphnet import read_metas
from optfuse.inductor import graph_record
from optfuse.schedule.prepared import load_prepared
from optfuse.problem.packing_csv import parse_packing
from optfuse.problem.serialize import load_instance, load_solution
from optfuse.report.html.extras import bench_extra, pareto_extra
from optfuse.report.html.plans import read_plan
from optfuse.rules import load_rules
from optfuse.cache import Cache

def cache(path):
    return Cache(Path(path).parent).read({"key": 1})

def fx(path):
    return graph_record.read_graph(json.loads(Path(path).read_text()), optfuse.schedule.plan.torch.device("cpu"))

def packing(path):
    return parse_packing(Path(path).read_text())

def page(path):
    return run_page(Path(path))

def raw(path):
    return calibrate._read(Path(path))

readers = dict(
    plan=optfuse.load, prepared=lambda p: load_prepared(Path(p)), stored=lambda p: read_plan(Path(p)), run=read_run,
    page=page, explain=lambda p: explain._asked(Path(p), "a", "b", None, None), instance=load_instance,
    solution=load_solution, device=load_device, rules=load_rules, bench=lambda p: bench_extra(Path(p)),
    pareto=lambda p: pareto_extra(Path(p)), metas=lambda p: read_metas(Path(p)), cache=cache, fx=fx, raw=raw,
    packing=packing,
)
WATCHED = ("import", "ctypes.dlopen", "ctypes.dlsym", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn",
           "pickle.find_class", "exec", "socket.connect", "os.remove", "os.rename", "os.mkdir", "os.symlink")
here, events, outcomes = None, [], []
package = os.path.dirname(os.path.realpath(optfuse.__file__)) + os.sep  # a page's styles and scripts are its own

def hook(event, args):
    if here is None:
        return
    if event == "open" and isinstance(args[0], (str, bytes)):
        path = os.path.realpath(os.fsdecode(args[0]))
        if path != here and not path.startswith((here + os.sep, package)):
            events.append([event, path])
    elif event in WATCHED:
        events.append([event, str(args)[:300]])

sys.addaudithook(hook)
for warm in (True, False):  # what readers import when they are first called is not the file's doing
    events.clear(), outcomes.clear()
    for kind, path in jobs:
        here = os.path.realpath(path)
        try:
            readers[kind](path)
            outcomes.append([kind, path, "read"])
        except optfuse.errors.OptfuseError as error:
            outcomes.append([kind, path, "refused: " + str(error)])
        here = None
print(json.dumps({"events": events, "outcomes": outcomes}))
"""


@pytest.mark.slow
def test_nothing_is_run_or_opened_elsewhere(schedule: optfuse.Schedule, tmp_path: Path, ran: Path) -> None:
    ran.with_name("private").write_text("what is mine")
    jobs = hostile_files(schedule, tmp_path / "strangers", ran)
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(tmp_path / "jobs.json")],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["events"] == []
    assert not ran.exists()
    assert not any("\n" in outcome for _, _, outcome in found["outcomes"])
    read = {(kind, Path(path).name) for kind, path, outcome in found["outcomes"] if outcome == "read"}
    assert {("plan", "plan_sound"), ("prepared", "prepared_sound"), ("plan", "plan_named"), ("page", "run")} <= read
    plain = {"instance", "solution", "device", "cache", "bench", "pareto", "raw", "rules"}  # whose text is only text
    assert plain <= {kind for kind, _ in read}, found["outcomes"]
    assert not {name for kind, name in read if kind in ("fx", "metas", "packing")}


HOSTILE = '</script><img src=x onerror="alert(1)"><script>alert(1)</script>'


def test_a_page_shows_what_files_say_as_text(schedule: optfuse.Schedule, tmp_path: Path) -> None:
    """Names of a plan, of a run's rows, of a bench and of a sweep: none can be read as HTML."""
    bench, caps = tmp_path / "bench.json", tmp_path / "caps.json"
    row = dict.fromkeys(("row", "times_ms", "speedup", "memory_ratio", "compile_ratio", "wrong", "failed"), HOSTILE)
    summary = {"rows": [row], "geomean_speedup": HOSTILE, "prediction": HOSTILE}
    bench.write_text(json.dumps({"versions": {"device": HOSTILE, "torch": HOSTILE}, "kernels": [], "summary": summary}))
    keys = ("name", "cap_bytes", "status", "peak_memory_bytes", "objective", "bound", "floor_bytes")
    caps.write_text(json.dumps([dict.fromkeys(keys, HOSTILE)]))
    extras = {"bench": bench_extra(bench), "pareto": pareto_extra(caps)}
    instance = replace(schedule.instance, name=HOSTILE)
    run = tmp_path / "run"
    Store(run, {"device": HOSTILE, "size": HOSTILE, "solvers": [HOSTILE]}, resume=False).close()
    add_rows(run, {"graph": HOSTILE, "solver": "cpsat", "outcome": HOSTILE, "reason": HOSTILE, "stage": HOSTILE})
    for text in (solved_page(HOSTILE, [(instance, schedule.result, HOSTILE, "")], extras), run_page(run, None, extras)):
        assert HOSTILE not in text
        assert "<img" not in text
        assert "alert(1)" in text  # it is there, as text
        assert text.count("<script") == text.count("</script>")
