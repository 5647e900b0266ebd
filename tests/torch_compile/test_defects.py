"""A defect of ours costs the graph that meets it, and is said with its traceback."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

import optfuse
from optfuse.compiler.frontend.aot_autograd import aot, split_step
from optfuse.runtime.environment import mode
from optfuse.torch_compile import compilation as module

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")


class Planted(AssertionError):
    """A defect that the test has put there."""


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    monkeypatch.delenv("OPTFUSE_STRICT")


def fails_at(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, when: str) -> None:
    """Have a stage fail for the graphs whose name ends so."""
    original = getattr(owner, name)

    def stage(*args, **kwargs):
        if any(str(getattr(value, "name", value)).endswith(when) for value in args):
            raise Planted("planted")
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, stage)


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("owner", "stage"), [(module, "schedule_graph"), (module, "fusion_problem"), (split_step, "adapt")], ids=str
)
@pytest.mark.parametrize("which", ["forward", "backward"])
def test_only_the_graph_that_meets_a_defect_runs_as_traced(
    owner, stage: str, which: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fails_at(monkeypatch, owner, stage, f".{which}")
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))
    x = torch.randn(4, 8, requires_grad=True)
    before = len(optfuse.compiled_graphs())
    with caplog.at_level(logging.WARNING, "optfuse"):
        got = torch.compile(model, backend="optfuse")(x)
        gradients = torch.autograd.grad(got.sin().sum(), (x, *model.parameters()))
    wanted = model(x)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(gradients, torch.autograd.grad(wanted.sin().sum(), (x, *model.parameters())))
    graphs = {graph.name.split(".")[-1]: graph for graph in optfuse.compiled_graphs()[before:]}
    assert "Planted: planted" in graphs.pop(which).why_not
    (other,) = graphs.values()
    assert other.status == "OPTIMAL"
    assert "Traceback" in caplog.text


def test_a_defect_before_the_graphs_are_known_leaves_both(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_):
        raise Planted("planted")

    monkeypatch.setattr(aot, "recognized", fail)
    x = torch.randn(4, 8, requires_grad=True)
    before = len(optfuse.compiled_graphs())
    got = torch.compile(lambda x: x.sin() * 2, backend="optfuse")(x)
    torch.testing.assert_close(torch.autograd.grad(got.sum(), x)[0], 2 * x.cos())
    assert all("planted" in graph.why_not for graph in optfuse.compiled_graphs()[before:])


def test_strict_raises_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fails_at(monkeypatch, module, "schedule_graph", ".inference")
    with pytest.raises(Exception, match="planted"):
        torch.compile(lambda x: x + 1, backend="optfuse", options={"strict": True})(torch.randn(3))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"peak_memory": 1}, "no schedule"),
        ({"rules": (optfuse.rules.fuse("sin", "cos"), optfuse.rules.no_fuse("sin", "cos"))}, "rules conflict"),
        ({"strict": "yes"}, "strict must be"),
    ],
)
@pytest.mark.parametrize("is_trained", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_the_caller_mends_is_raised(
    options: dict, error: str, is_trained: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """And no graph is said to run as it was traced."""
    x = torch.randn(3, requires_grad=is_trained)
    before = len(optfuse.compiled_graphs())
    with pytest.raises(Exception, match="no training step" if is_trained and error == "no schedule" else error):
        torch.compile(lambda x: x.sin().cos(), backend="optfuse", options=options)(x)
    assert len(optfuse.compiled_graphs()) == before
    assert "as it was traced" not in caplog.text
