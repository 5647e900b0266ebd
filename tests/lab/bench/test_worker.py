"""A whole row on the CPU: what is measured is measured, what fails has its reason, and a wrong program is told."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from optfuse.lab.bench.checks import check, reference
from optfuse.lab.bench.meter import CpuMeter, Timing
from optfuse.lab.bench.records import Settings, Task
from optfuse.lab.bench.systems import load_case
from optfuse.lab.bench.worker import work

MLP = str(Path(__file__).parents[3] / "models" / "mlp.py")
SETTINGS = Settings(size="small", time_limit=3.0, workers=1, seconds=0.01)


def events(task: Task, deadline: float, **settings: Any) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    work([task], replace(SETTINGS, **settings), found.append, deadline, CpuMeter(), warm_up=False)
    assert [event["event"] for event in found[:2]] == ["versions", "yardstick"]
    assert found[0]["inductor"]["epilogue_fusion"] is True
    return {event["system"]: event for event in found if event["event"] == "done"}


def test_a_row() -> None:
    task = Task(MLP, "mlp", False, ("eager", "optfuse", "optfuse-graphs"))
    found = events(task, time.monotonic() + 600)
    assert found["eager"]["median_ms"] > 0
    ours = found["optfuse"]
    assert ours["check"]["passed"] is True
    assert ours["check"]["against"] == "float64"
    assert ours["predicted_ms"] > 0
    assert set(ours["phases"]) == {"capture, solve, emit", "load", "first run", "of it, solve"}
    assert found["optfuse-graphs"]["status"] == "failed"
    assert "need a GPU" in found["optfuse-graphs"]["reason"]


@pytest.mark.parametrize("train", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_row_as_users_call_it(train: bool) -> None:
    found = events(Task(MLP, "mlp", train, ("eager", "optfuse-compile")), time.monotonic() + 600, loss="outside")
    ours = found["optfuse-compile"]
    assert ours["check"]["passed"] is True
    assert len(ours["schedules"]) == 1 + train
    assert ours["predicted_ms"] > 0
    assert "note" not in ours, "a graph was not scheduled"


def test_nothing_is_begun_after_the_deadline() -> None:
    found = events(Task(MLP, "mlp", False, ("eager", "optfuse")), time.monotonic() - 1)
    assert {facts["reason"] for facts in found.values()} == {"not begun: the time limit was reached"}


def test_a_model_that_does_not_load_fails_all_of_its_systems(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def model(): raise ValueError('no weights')\ndef inputs(): return (), {}\n")
    found = events(Task(str(path), "broken", False, ("eager", "optfuse")), time.monotonic() + 600)
    assert all("ValueError: no weights" in facts["reason"] for facts in found.values())


@pytest.mark.parametrize("train", [False, True])
def test_a_wrong_program_is_told(train: bool) -> None:
    case = load_case(Task(MLP, "mlp", train, ()), SETTINGS, torch.device("cpu"))
    exact = reference(case)

    def wrong() -> Any:
        outputs = case.run(case.model)
        if train:
            for parameter in case.model.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(-1)
            return outputs
        return {name: value * 1.1 for name, value in outputs.items()}

    assert check(case, lambda: case.run(case.model), exact)["passed"] is True
    assert check(case, wrong, exact)["passed"] is False


def test_timings_are_order_statistics() -> None:
    timing = Timing.of([float(k) for k in range(11)])
    assert (timing.median, timing.low, timing.high, timing.runs) == (5, 1, 9, 11)
    assert Timing.of([3.0]).median == 3
