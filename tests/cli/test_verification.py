from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from optfuse.api import Schedule, TrainingSchedule
from optfuse.cli import verification
from optfuse.cli.verification import verify_model
from optfuse.errors import VerificationError
from optfuse.solver.control.options import SolveOptions

OPTIONS = SolveOptions(time_limit=10, workers=1)

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(17, 9)

    def forward(self, x):
        y = torch.softmax(torch.nn.functional.gelu(self.linear(x)), -1)
        return {"loss": (y * y).mean(), "y": y}

def model(size="full"):
    torch.manual_seed(0)
    return Net()

def inputs(size="full"):
    return (torch.randn(5, 17, generator=torch.Generator().manual_seed(0)),), {}
"""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(MODEL)
    return path


def spoil(monkeypatch: pytest.MonkeyPatch, kind: type, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Let programs of ``kind`` return something slightly wrong."""
    compiled = kind.compile

    def wrong(self: Any) -> Callable[..., Any]:
        program = compiled(self)
        return lambda *args, **kwargs: change(program(*args, **kwargs))

    monkeypatch.setattr(kind, "compile", wrong)


def test_a_wrong_kernel_is_named(
    net: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = verification.optimize

    def spoilt(*args: Any, **kwargs: Any) -> Any:
        schedule = made(*args, **kwargs)
        return replace(schedule, source=schedule.source.replace("0.70710678", "0.71710678"))

    monkeypatch.setattr(verification, "optimize", spoilt)
    with pytest.raises(VerificationError, match=r"steps are right; worst: net, step \d+, k\d+_\w*erf\w*: "):
        verification.check_model(net, False, "h200", OPTIONS)
    assert "what is wrong" in capsys.readouterr().err


@pytest.mark.spread(2, 1)
@pytest.mark.parametrize("train", [False, True])
def test_a_sound_program_passes(net: Path, train: bool) -> None:
    report = verify_model(net, train, "h200", OPTIONS)

    names = {check.name for check in report.outputs}
    assert report.passed
    assert {"output 0", "output 1"} <= names
    assert ("gradient of linear.weight" in names) == train


@pytest.mark.parametrize(("train", "kind"), [(False, Schedule), (True, TrainingSchedule)])
@pytest.mark.spread(2)
def test_a_loss_that_is_off_by_a_millionth_fails(
    net: Path, monkeypatch: pytest.MonkeyPatch, train: bool, kind: type
) -> None:
    spoil(monkeypatch, kind, lambda out: {**out, "loss": out["loss"] * (1 + 2e-6)})

    with pytest.raises(VerificationError, match="output 0"):
        verify_model(net, train, "h200", OPTIONS)


def test_a_wrong_gradient_fails(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(out: dict[str, Any]) -> dict[str, Any]:
        loss, y = out["loss"], out["y"]
        return {"loss": loss, "y": y.detach() + 2 * (y - y.detach())}

    spoil(monkeypatch, TrainingSchedule, doubled)

    with pytest.raises(VerificationError, match="gradient of linear"):
        verify_model(net, True, "h200", OPTIONS)


def test_batch_norms_are_verified_with_their_statistics(tmp_path: Path) -> None:
    path = tmp_path / "norm.py"
    path.write_text(
        MODEL.replace("torch.nn.Linear(17, 9)", "torch.nn.Sequential(torch.nn.Linear(17, 9), torch.nn.BatchNorm1d(9))")
    )

    report = verify_model(path, True, "h200", OPTIONS)

    assert any(check.name.endswith("running_mean") and check.dtype == "float32" for check in report.outputs)
    assert torch.is_grad_enabled()
