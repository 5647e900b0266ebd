"""Rules through the public face: a TOML file, ``optimize``, torch.compile."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import optfuse
from optfuse import rules
from optfuse.api import Schedule, TrainingSchedule
from optfuse.errors import RuleConflictError, RuleError
from optfuse.runtime.environment import mode
from optfuse.torch_compile.backend import backend

OPTIONS = optfuse.SolveOptions(time_limit=10, workers=1)


class Block(nn.Module):
    """A norm, an activation of one op and a residual: enough for kernels that could be otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(48)
        self.fc = nn.Linear(48, 48)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.act(self.fc(self.norm(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.h = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.h:
            x = block(x)
        return x.softmax(-1)


def scheduled(*given: rules.Rule, **more: Any) -> Schedule:
    found = optfuse.optimize(Net(), (torch.randn(64, 48),), options=OPTIONS, rules=given, **more)
    assert isinstance(found, Schedule)
    return found


def kernels(schedule: Schedule, module: str) -> list[set[str]]:
    """The kernels, by op name, with an op of a module."""
    ops = schedule.instance.ops
    inside = {k for k, op in enumerate(ops) if op.module == module}
    return [{ops[op].name for op in kernel.ops} for kernel in schedule.solution.kernels if inside & set(kernel.ops)]


def names(schedule: Schedule, module: str) -> set[str]:
    return {op.name for op in schedule.instance.ops if op.module == module}


def test_load_rules(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text('fuse = [["a", "b"]]\nbarrier = ["c", "h.*.d"]\n')
    assert rules.load_rules(path) == (rules.fuse("a", "b"), rules.barrier("c"), rules.barrier("h.*.d"))


@pytest.mark.parametrize(("text", "words"), [("fuse = [", "not TOML"), ("fuze = []", "did you mean 'fuse'")])
def test_a_file_that_holds_no_rules(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(RuleError, match=words) as caught:
        rules.load_rules(path)
    assert str(caught.value).startswith(str(path))
    with pytest.raises(RuleError, match="no such file"):
        rules.load_rules(tmp_path / "other.toml")


def test_a_glob_of_module_paths_keeps_every_layer_apart() -> None:
    free = scheduled()
    act = next(iter(names(free, "h.0.act")))
    assert any(len(ops) > 1 for ops in kernels(free, "h.0.act"))
    kept = scheduled(rules.barrier("h.*.act"))
    assert kernels(kept, "h.0.act") == [{act}]
    assert all(len(ops) == 1 for ops in kernels(kept, "h.1.act"))
    assert kept.objective > free.objective
    assert kept.status == "OPTIMAL"


def test_the_program_under_rules_computes_the_same(tmp_path: Path) -> None:
    if mode() == "compile":
        pytest.skip("these tensors live on the CPU")
    model, x = Net(), torch.randn(64, 48)
    given = (rules.single_kernel(["h.*.norm"]), rules.no_fuse("h.*.act", "h.*"))
    found = optfuse.optimize(model, (x,), options=OPTIONS, rules=given)
    assert isinstance(found, Schedule)
    assert names(found, "h.1.norm") in kernels(found, "h.1.norm")
    found.save(tmp_path / "plan")
    assert optfuse.load(tmp_path / "plan").instance.rules == found.instance.rules
    with torch.no_grad():
        torch.testing.assert_close(found.compile()(x), model(x))


def test_rules_of_a_training_step_hold_in_the_graph_that_they_match() -> None:
    given = (rules.barrier("h.*.act"),)
    found = optfuse.optimize(Net(), (torch.randn(64, 48),), train=True, options=OPTIONS, rules=given)
    assert isinstance(found, TrainingSchedule)
    assert found.forward.instance.rules.barrier
    with pytest.raises(RuleError, match=r"'h.7.act' matches no op.*'h.0.act'"):
        scheduled(rules.barrier("h.7.act"))


def test_a_conflict_names_the_rules_as_written() -> None:
    act = r'fuse\("h.0.act", "h.1.act"\)'
    with pytest.raises(RuleConflictError, match=f"obeys {act}"):
        scheduled(rules.barrier("h.*.norm"), rules.fuse("h.0.act", "h.1.act"))


def test_explanations_of_a_schedule_know_the_loops(tmp_path: Path) -> None:
    found = scheduled()
    (act,) = names(found, "h.0.act")
    norm = sorted(names(found, "h.1.norm"))[0]
    why = found.explain("h.0.act", norm, options=OPTIONS)
    assert (why.a.name, why.a.module) == (act, "h.0.act")
    assert "test_rules.py" in why.a.source
    assert why.together
    assert why.difference is not None
    assert why.difference > 0
    found.save(tmp_path / "plan")
    again = optfuse.load(tmp_path / "plan").explain(act, norm, options=OPTIONS)
    assert (again.verdict, again.together, again.difference) == (why.verdict, why.together, why.difference)


class Windowed(nn.Module):
    """A value used at other points than it is computed at, in an order that no walk follows."""

    def forward(self, x: Tensor) -> Tensor:
        return x.exp().flip(0).tanh()


def test_an_index_is_the_reason() -> None:
    found = optfuse.optimize(Windowed(), (torch.randn(64, 48),), options=OPTIONS)
    assert isinstance(found, Schedule)
    first, *_, last = (op.name for op in found.instance.ops)
    why = found.explain(first, last, options=OPTIONS)
    assert why.verdict == "illegal"
    assert any("index: " in reason.text for reason in why.reasons), str(why)


def test_torch_compile_takes_rules_and_says_what_matches_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if mode() == "compile":
        pytest.skip("these tensors live on the CPU")
    torch._dynamo.reset()  # noqa: SLF001 - its public face
    path = tmp_path / "rules.toml"
    path.write_text('barrier = ["h.*.act", "nothing"]\n')
    seen: list[Any] = []

    def spying(graph: Any, inputs: Any, **more: Any) -> Any:
        seen.append(backend(graph, inputs, **more))
        return seen[-1]

    model, x = Net(), torch.randn(64, 48)
    for given in (str(path), {"barrier": ["h.*.act", "nothing"]}, [rules.barrier("h.*.act"), rules.barrier("nothing")]):
        torch._dynamo.reset()  # noqa: SLF001 - its public face
        seen.clear()
        options = {"time_limit": 10, "workers": 1, "rules": given, "cache": False}
        with torch.no_grad(), caplog.at_level(logging.WARNING, logger="optfuse"):
            torch.testing.assert_close(torch.compile(model, backend=spying, options=options)(x), model(x))
        (schedule,) = seen[0].record.schedules
        assert all(len(ops) == 1 for ops in kernels(schedule, "h.0.act"))
        assert len(schedule.instance.rules.barrier) == 2
        ((_, reason),) = seen[0].record.unmatched
        assert "'nothing' matches no op" in reason
        assert reason in caplog.text
