from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from optfuse.problem.serialize import load_solution
from tests.cli.conftest import Outcome
from tests.report.test_summary import PROMISED

Run = Callable[..., Outcome]

QUICK = ("--time-limit", 10, "--workers", 1)

MODEL = """
import torch

print("a model file may print")

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(17, 9)

    def forward(self, x):
        {body}

def model(size="full"):
    return Net()

def inputs(size="full"):
    return (torch.randn(5, 17, generator=torch.Generator().manual_seed(0)),), {{}}
"""
SOUND = "return torch.softmax(torch.nn.functional.gelu(self.linear(x)), -1)"
BRANCHING = "return self.linear(x) if x.sum() > 0 else x"


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(MODEL.format(body=SOUND))
    return path


def test_json_is_a_list_with_a_record_a_graph(optfuse: Run, net: Path) -> None:
    outcome = optfuse("optimize", net, "--train", "--json", *QUICK)

    assert outcome.code == 0, outcome.err
    records = json.loads(outcome.out)
    assert [record["name"] for record in records] == ["net.forward", "net.backward"]
    for record in records:
        assert set(PROMISED) <= record.keys()
        assert record["bound"] <= record["objective"] <= record["greedy_objective"]
    assert any("mm" in name for name in records[0]["library_ops"])
    assert any("given to libraries (" in phrase for phrase in records[0]["decisions"])


def test_out_holds_a_checked_plan_a_graph(optfuse: Run, net: Path, tmp_path: Path) -> None:
    outcome = optfuse("optimize", net, "--out", tmp_path / "plans", *QUICK)

    assert outcome.code == 0, outcome.err
    (plan,) = (tmp_path / "plans").iterdir()
    assert plan.name == "net"
    assert {"instance.json", "solution.json", "kernels.py", "report.txt"} <= {path.name for path in plan.iterdir()}
    checked = optfuse("check", plan / "instance.json", plan / "solution.json")
    assert checked.code == 0, checked.err
    objective = load_solution(plan / "solution.json").objective
    assert f"objective {objective / 1e6:.3f} us" in (plan / "report.txt").read_text()
    compile((plan / "kernels.py").read_text(), "kernels.py", "exec")


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.spread(2)
def test_verify_holds_the_program_against_eager(optfuse: Run, net: Path, train: bool) -> None:
    outcome = optfuse("optimize", net, "--verify", *(["--train"] if train else []), *QUICK)

    assert outcome.code == 0, outcome.err
    assert "outputs agree with float64" in outcome.err
    assert "0 do not compile, 0 spill" in outcome.err


def test_check_kernels_runs_every_step_in_both_kinds_of_memory(optfuse: Run, net: Path) -> None:
    outcome = optfuse("optimize", net, "--check-kernels", *QUICK)

    assert outcome.code == 0, outcome.err
    assert [line.split("values ")[1].split(",")[0] for line in outcome.err.splitlines() if "values " in line] == [
        "apart",
        "planned",
    ]
    assert "calls through CUDA graphs are right" in outcome.err


def test_a_model_that_branches_on_data_is_refused(optfuse: Run, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MODEL.format(body=BRANCHING))

    outcome = optfuse("optimize", tmp_path / "net.py", "--out", tmp_path / "plans", "--json")

    assert outcome.code == 2
    assert outcome.out == ""
    lines = outcome.err.splitlines()
    assert lines[-1].startswith("optfuse: error: net cannot be captured as one graph")
    assert lines[:-1] == [
        "a model file may print",
        f"{tmp_path / 'net.py'}: capturing and solving (inference, full size)",
    ]
    assert not (tmp_path / "plans").exists()


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--size", "huge"), "full, bench, small"),
        (("--time-limit", 0), "time_limit"),
        (("--workers", 0), "workers"),
        (("--device", "abacus"), "abacus"),
    ],
)
def test_a_bad_flag_is_refused(optfuse: Run, net: Path, flags: tuple[object, ...], reason: str) -> None:
    outcome = optfuse("optimize", net, "--json", *flags)

    assert (outcome.code, outcome.out) == (2, "")
    assert reason in outcome.err.splitlines()[-1]


def test_a_missing_model_file_is_named(optfuse: Run, tmp_path: Path) -> None:
    assert "net.py: no such file" in optfuse("optimize", tmp_path / "net.py").error_line()


def test_a_model_file_that_fails_is_named(optfuse: Run, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("def model(): raise RuntimeError('no\\nweights')\ndef inputs(): return (), {}")

    outcome = optfuse("optimize", tmp_path / "net.py", "--out", tmp_path / "plans")

    assert (outcome.code, outcome.out) == (2, "")
    assert "RuntimeError: no weights" in outcome.err.splitlines()[-1]
    assert not (tmp_path / "plans").exists()


def test_out_that_is_a_file_is_refused_before_any_work(optfuse: Run, net: Path) -> None:
    assert "not a folder" in optfuse("optimize", net, "--out", net).error_line()


def test_tuning_needs_a_gpu(optfuse: Run, net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    outcome = optfuse("optimize", net, "--tune", *QUICK)

    assert outcome.code == 2
    assert outcome.err.startswith("optfuse: error: --tune needs a GPU to run kernels on")
    assert outcome.err.count("\n") == 1


def test_dynamic_says_where_the_schedule_holds(optfuse: Run, net: Path) -> None:
    outcome = optfuse("optimize", net, "--dynamic", "0.0=1:64", *QUICK)
    assert outcome.code == 0, outcome.err
    assert "is within 5% of the best one at" in outcome.err

    refused = optfuse("optimize", net, "--dynamic", "x=1:64", *QUICK)
    assert refused.code == 2
    assert "--dynamic: not ARG.DIM" in refused.err
