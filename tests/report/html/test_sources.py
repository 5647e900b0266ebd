"""The parts of a module as it is really emitted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import optfuse
from optfuse.report.html.sources import module_steps


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(16, 16)
        self.second = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.first, self.second):
            x = torch.nn.functional.layer_norm(torch.nn.functional.gelu(layer(x)), (16,))
        return torch.cat([x, x.argsort(-1).float()])


@pytest.fixture(scope="module")
def schedule() -> optfuse.Schedule:
    made = optfuse.optimize(Net(), (torch.ones(8, 16),), options=optfuse.SolveOptions(time_limit=5, workers=1))
    assert isinstance(made, optfuse.Schedule)
    return made


def test_each_kernel_has_its_function_and_each_call_its_lines(schedule: optfuse.Schedule) -> None:
    steps = module_steps(schedule.source)

    kinds = [schedule.instance.ops[kernel.ops[0]].kind for kernel in schedule.solution.kernels]
    assert len(steps) == len(kinds)
    assert {"loop", "library"} == set(kinds)
    for step, kind, kernel in zip(steps, kinds, schedule.solution.kernels, strict=True):
        if kind == "loop":
            assert "@triton.jit\ndef k" in step
            assert step.count("\ndef ") == 1
        else:
            assert schedule.instance.ops[kernel.ops[0]].name in step
            assert "aten." in step or "torch." in step


def test_a_schedule_writes_its_page_and_trace(schedule: optfuse.Schedule, tmp_path: Path) -> None:
    schedule.to_html(tmp_path / "page.html")
    schedule.to_trace(tmp_path / "trace.json")

    assert schedule.name in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert (tmp_path / "trace.json").stat().st_size > 1000
    assert schedule.plot().get_axes()


def test_what_is_no_module_has_no_steps() -> None:
    assert module_steps("") == ()
    assert module_steps("print('hello')\n") == ()
