"""Inputs at other sizes, and regions of whole models."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import optfuse
from optfuse.errors import InvalidOptionError
from optfuse.schedule.resized import changing_sizes, resized
from optfuse.solver.sizes.size_box import SizeBox
from optfuse.solver.sizes.size_regions import SizeRegions

OPTIONS = optfuse.SolveOptions(time_limit=10, workers=1)


class Normed(nn.Module):
    """A norm and a perceptron: their kernels and calls change with the number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(256), nn.Linear(256, 512), nn.Linear(512, 256)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return (x + self.down(nn.functional.gelu(self.up(self.norm(x))))) * scale


@pytest.mark.slow
def test_each_size_is_held_against_a_schedule_of_its_own() -> None:
    model, inputs = Normed(), (torch.randn(64, 256), torch.randn(64, 1))
    schedule = optfuse.optimize(model, inputs, dynamic={0: {0: (1, 4096)}, 1: {0: (1, 4096)}}, options=OPTIONS)
    assert isinstance(schedule, optfuse.Schedule)
    regions = schedule.regions
    assert isinstance(regions, SizeRegions)
    assert regions.plans[0] == 64
    for point in (regions.points[0], regions.points[-1]):
        fresh = optfuse.optimize(model, (torch.randn(point.size, 256), torch.randn(point.size, 1)), options=OPTIONS)
        assert isinstance(fresh, optfuse.Schedule)
        assert point.best == fresh.objective
        assert point.bound == fresh.bound
    own = next(point for point in regions.points if point.size == 64)
    assert own.costs[0] == own.best == schedule.objective
    assert regions.ranges[0].least == 1
    assert regions.ranges[-1].most == 4096
    assert schedule.plot_sizes().axes


def test_two_sizes_are_priced_each_with_each() -> None:
    model = nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 256))
    dynamic: dict[int | str, dict[int, tuple[int, int]]] = {0: {0: (2, 32), 1: (16, 1024)}}
    schedule = optfuse.optimize(model, (torch.randn(8, 128, 256),), dynamic=dynamic, options=OPTIONS)
    assert isinstance(schedule, optfuse.Schedule)
    box = schedule.regions
    assert isinstance(box, SizeBox)
    assert {(2, 16), (2, 1024), (32, 16), (32, 1024), (8, 128)} <= {point.size for point in box.points}
    own = next(point for point in box.points if point.size == (8, 128))
    assert own.costs[0] == own.best == schedule.objective
    corner = box.points[-1]
    fresh = optfuse.optimize(model, (torch.randn(32, 1024, 256),), options=OPTIONS)
    assert isinstance(fresh, optfuse.Schedule)
    assert (corner.size, corner.best, corner.bound) == ((32, 1024), fresh.objective, fresh.bound)
    assert schedule.plot_sizes().axes


@pytest.mark.slow
def test_a_training_step_adds_both_graphs() -> None:
    inputs = (torch.randn(32, 256), torch.randn(32, 1))
    dynamic: dict[int | str, dict[int, tuple[int, int]]] = {0: {0: (16, 64)}, 1: {0: (16, 64)}}
    step = optfuse.optimize(Normed(), inputs, train=True, dynamic=dynamic, options=OPTIONS)
    assert isinstance(step, optfuse.TrainingSchedule)
    assert isinstance(step.regions, SizeRegions)
    own = next(point for point in step.regions.points if point.size == 32)
    assert own.best == sum(schedule.objective for schedule in step)


def test_resized_inputs_keep_their_order_of_dimensions() -> None:
    image = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
    inputs: tuple[tuple[Tensor, ...], dict[str, int]] = (image,), {"count": 3}
    changing = changing_sizes(inputs, {0: {0: (1, 9), 2: (8, 16), 3: (8, 16)}})
    ((other,), kwargs) = resized(inputs, changing, (5, 12))
    assert other.shape == (5, 3, 12, 12)
    assert other.is_contiguous(memory_format=torch.channels_last)
    assert other.requires_grad
    assert kwargs == {"count": 3}


@pytest.mark.parametrize(
    ("dynamic", "message"),
    [
        ({2: {0: (1, 9)}}, "no argument 2; those given are 0, 1, 'n'"),
        ({"n": {0: (1, 9)}}, "is int, not a tensor"),
        ({0: {2: (1, 9)}}, "has 2 dimensions, not dimension 2"),
        ({0: {0: (1, 9), 1: (1, 9)}, 1: {0: (2, 9)}}, "one or two sizes, .*, not 4 in 1..9, 5 in 1..9, 5 in 2..9"),
        ({}, "one or two sizes, .*, not none"),
        ({0: {0: (6, 9)}}, "the example's size 5 is not in its range, 6..9"),
    ],
)
def test_what_names_no_size_or_too_many_is_refused(
    dynamic: dict[int | str, dict[int, tuple[int, int]]], message: str
) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        changing_sizes(((torch.randn(5, 4), torch.randn(5, 1)), {"n": 3}), dynamic)


def test_sizes_are_not_compared_under_a_cap() -> None:
    with pytest.raises(InvalidOptionError, match="without a cap"):
        optfuse.optimize(
            Normed(),
            (torch.randn(5, 256), torch.randn(5, 1)),
            dynamic={0: {0: (1, 9)}},
            options=optfuse.SolveOptions(peak_memory="1GiB"),
        )
