"""Plans by a made-up clock: the fastest beyond doubt is taken, the certificate stays true, times are kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import optfuse
from optfuse.cache import Cache
from optfuse.errors import InvalidOptionError
from optfuse.problem.checker import check
from optfuse.runtime.environment import mode
from optfuse.runtime.program import Expected
from optfuse.tuning.rank import made_up, rank, ranking_text
from tests.oracle.judging import OPTIONS

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")

X = torch.randn(64, 48, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """Enough to fuse that there are several plans."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(48, 48), nn.LayerNorm(48)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.norm(torch.nn.functional.gelu(self.linear(x)) + x), 0) * x.sum(1, keepdim=True)


class Clock:
    """Times by each plan's number of kernels."""

    def __init__(self, *, more_is_faster: bool, step: float = 10.0) -> None:
        self.sign, self.step, self.calls = -1 if more_is_faster else 1, step, 0

    def __call__(self, schedules: Sequence[optfuse.Schedule]) -> list[float]:
        self.calls += 1
        return [1000.0 + self.sign * self.step * len(schedule.solution.kernels) for schedule in schedules]


@pytest.fixture(scope="module")
def schedule() -> optfuse.Schedule:
    torch.manual_seed(0)
    return optfuse.optimize(Net(), (X,), options=OPTIONS, name="net")


def test_the_fastest_is_taken_and_proves_no_more_than_it_can(schedule: optfuse.Schedule, tmp_path: Path):
    taken = rank(schedule, OPTIONS, 4, cache=Cache(tmp_path), clock=Clock(more_is_faster=True), device="fake")
    assert len(taken.ranking) == 4
    assert [row.chosen for row in taken.ranking].count(True) == 1
    chosen = next(row for row in taken.ranking if row.chosen)
    assert chosen.measured_us == min(row.measured_us for row in taken.ranking)
    assert chosen.origin != "best"
    assert len(taken.solution.kernels) == chosen.kernels > len(schedule.solution.kernels)
    assert (taken.bound, taken.status) == (schedule.bound, "FEASIBLE")
    assert taken.objective == taken.solution.objective > taken.bound
    assert taken.gap > 0
    assert check(taken.instance, taken.solution) == ()
    assert torch.allclose(taken.compile()(X), schedule.compile()(X), atol=1e-6)
    assert ranking_text(taken).count("\n") == 4
    taken.save(tmp_path / "plan")
    assert optfuse.load(tmp_path / "plan").source == taken.source


@pytest.mark.parametrize("clock", [Clock(more_is_faster=False), Clock(more_is_faster=True, step=0.01)])
def test_the_models_best_stays_unless_another_is_faster_beyond_doubt(
    schedule: optfuse.Schedule, clock: Clock, tmp_path: Path
):
    taken = rank(schedule, OPTIONS, 3, cache=Cache(tmp_path), clock=clock, device="fake")
    assert taken.ranking[0].chosen
    assert (taken.source, taken.result) == (schedule.source, schedule.result)


def test_times_are_kept(schedule: optfuse.Schedule, tmp_path: Path):
    clock = Clock(more_is_faster=True)
    first = rank(schedule, OPTIONS, 3, cache=Cache(tmp_path), clock=clock, device="fake")
    again = rank(schedule, OPTIONS, 3, cache=Cache(tmp_path), clock=clock, device="fake")
    assert clock.calls == 1
    assert again.ranking == first.ranking
    rank(schedule, OPTIONS, 4, cache=Cache(tmp_path), clock=clock, device="fake")  # one plan more: all run again
    rank(schedule, OPTIONS, 3, cache=Cache(tmp_path), clock=clock, device="another")
    assert clock.calls == 3


@pytest.mark.parametrize("measure", [1, -2, True, 2.0, "3"])
def test_strange_numbers_of_plans_are_refused(measure: object):
    with pytest.raises(InvalidOptionError, match="how many plans"):
        optfuse.optimize(Net(), (X,), measure=measure)  # type: ignore[arg-type]


def test_without_a_gpu_it_is_refused_before_anything_is_solved():
    with pytest.raises(InvalidOptionError, match="measure needs a GPU to run kernels on"):
        optfuse.optimize(Net(), (X,), measure=3)


def test_made_up_inputs():
    floats = made_up(Expected("a", torch.bfloat16, (3, 4), (1, 3), "cuda:0"), torch.device("cpu"))
    assert floats.stride() == (1, 3)
    assert floats.float().abs().sum() > 0
    positions = made_up(Expected("b", torch.int64, (3,), (1,), "cuda:0"), torch.device("cpu"))
    assert positions.tolist() == [0, 0, 0]
