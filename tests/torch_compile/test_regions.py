"""Plans chosen by size: with regions, each call has the plan that was solved for its size's region."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import optfuse
from optfuse.compiler.frontend.sizes import by_size
from optfuse.compiler.ir.sizes import Size, hint
from optfuse.errors import InvalidOptionError
from optfuse.solver.sizes.size_regions import SizeRange, SizeRegions
from optfuse.torch_compile.backend import backend
from tests.torch_compile.test_torch_compile import OPTIONS

#: The plan of size 32 is for 9 to 64, that of size 4 for 2 to 8.
REGIONS = SizeRegions((32, 4), (), (SizeRange(2, 8, 1, 0.0), SizeRange(9, 64, 0, 0.0)))


class Regional:
    """``torch.compile`` with regions; ``solved_at`` has the first input's size at which each schedule was solved."""

    def __init__(self, regions: SizeRegions) -> None:
        self.regions, self.runs = regions, []

    def __call__(self, function: Any) -> Any:
        return torch.compile(function, backend=self.spy)

    def spy(self, graph: Any, inputs: Any) -> Any:
        self.runs.append(backend(graph, inputs, options={**OPTIONS, "regions": self.regions}))
        return self.runs[-1]

    def solved_at(self) -> list[int]:
        """The size at which each schedule was solved, in order."""
        found = []
        for schedule in (schedule for run in self.runs for schedule in run.record.schedules):
            shapes = [buffer.shape for buffer in schedule.graph.buffers if buffer.name in schedule.graph.inputs]
            found.append(max(hint(n) for shape in shapes for n in shape if isinstance(n, Size)))
        return found


def marked(*shape: int, axis: int = 0) -> Tensor:
    x = torch.randn(*shape)
    torch._dynamo.mark_dynamic(x, axis)  # noqa: SLF001 - its public face
    return x


def test_each_size_has_the_plan_of_its_region() -> None:
    def function(x: Tensor) -> Tensor:
        return (x * 2 + 1).relu().sum(1)

    compiled = Regional(REGIONS)
    fast = compiled(function)
    for size in (6, 20, 5, 40, 8, 9, 4, 32, 64):
        x = marked(size, 3)
        torch.testing.assert_close(fast(x), function(x))
    assert compiled.solved_at() == [4, 32]


def test_steps_have_both_plans_and_eagers_gradients() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.GELU())
    compiled = Regional(REGIONS)
    fast = compiled(model)
    for size in (20, 6, 7, 33):
        x = marked(size, 6)
        found = []
        for step in (fast, model):
            model.zero_grad()
            step(x).pow(2).sum().backward()
            found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        torch.testing.assert_close(*found)
    assert compiled.solved_at() == [32, 32, 4, 4]


def test_a_size_at_which_the_regions_plan_does_not_hold_has_one_of_its_own() -> None:
    """A row of 4 in one tile is no schedule for 7."""

    def function(x: Tensor) -> Tensor:
        return x.softmax(1)

    compiled = Regional(REGIONS)
    fast = compiled(function)
    for size in (7, 6, 4, 3, 30):
        x = marked(2, size, axis=1)
        torch.testing.assert_close(fast(x), function(x))
    assert compiled.solved_at() == [4, 7, 32]


def test_a_region_without_a_range_of_its_own_is_served_by_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_size, "RANGES", 1)
    compiled = Regional(REGIONS)
    fast = compiled(lambda x: (x * 2 + 1).relu())
    for size in (20, 6, 4, 5, 32):
        x = marked(size, 3)
        torch.testing.assert_close(fast(x), (x * 2 + 1).relu())
    assert compiled.solved_at() == [32]


def test_where_several_sizes_change_it_is_said_that_regions_are_not_used(caplog: pytest.LogCaptureFixture) -> None:
    compiled = Regional(REGIONS)
    fast = torch.compile(lambda x: (x * 2).relu(), backend=compiled.spy, dynamic=True)
    for size in (6, 20):
        x = torch.randn(size, 3)
        torch.testing.assert_close(fast(x), (x * 2).relu())
    said = [text for text in caplog.messages if "regions are of one size, and several may change here" in text]
    assert len(said) == 1
    assert compiled.solved_at() == [6]


def test_regions_of_a_schedule_are_taken_as_they_are() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Softmax(-1)).eval()
    schedule = optfuse.optimize(model, (torch.randn(16, 6),), dynamic={0: {0: (2, 64)}})
    assert isinstance(schedule, optfuse.Schedule)
    assert isinstance(schedule.regions, SizeRegions)
    compiled = Regional(schedule.regions)
    with torch.no_grad():
        for size in (5, 40):
            x = marked(size, 6)
            torch.testing.assert_close(compiled(model)(x), model(x))
    assert set(compiled.solved_at()) == {schedule.regions.solved_at(5), schedule.regions.solved_at(40)}


def test_other_regions_are_refused() -> None:
    with pytest.raises(InvalidOptionError, match=r"^regions must be those of optfuse.optimize\(..., dynamic=...\)"):
        backend(torch.fx.symbolic_trace(nn.ReLU()), [torch.randn(3)], options={"regions": {2: 4}})
