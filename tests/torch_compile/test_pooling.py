"""Pooling of two and three dimensions with ``backend="optfuse"``: in kernels of ours, with eager execution's values."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import optfuse
from optfuse.runtime.environment import mode

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")

OPTIONS = {"time_limit": 5, "workers": 1}
CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}
both_ranks = pytest.mark.parametrize("rank", [2, 3])


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()  # noqa: SLF001 - its public face
    torch.manual_seed(0)


class Pools(nn.Module):
    """Pools of all kinds between pointwise functions, whose sizes divide the image's."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(3, *[1] * rank) + 0.5)
        self.maximum = (nn.MaxPool2d if rank == 2 else nn.MaxPool3d)(3, 2, 1)
        self.mean = (nn.AvgPool2d if rank == 2 else nn.AvgPool3d)(2, 1, 1, ceil_mode=True, count_include_pad=False)
        self.part = (nn.AdaptiveAvgPool2d if rank == 2 else nn.AdaptiveAvgPool3d)(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.part(self.mean(self.maximum((x * self.scale).tanh()).exp()) + 1).sigmoid()


def images(rank: int, channels_last: bool = False) -> Tensor:
    x = torch.randn(2, 3, *(6, 10, 6)[-rank:])
    return x.to(memory_format=CHANNELS_LAST[rank]) if channels_last else x


@pytest.mark.parametrize("channels_last", [False, True])
@both_ranks
def test_inference(rank: int, channels_last: bool) -> None:
    model, x = Pools(rank), images(rank, channels_last)
    compiled: Any = torch.compile(model, backend="optfuse", options=OPTIONS)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-6, atol=1e-6)


@both_ranks
def test_training(rank: int) -> None:
    model, x = Pools(rank), images(rank)
    other = copy.deepcopy(model)
    compiled: Any = torch.compile(model, backend="optfuse", options=OPTIONS)
    given, taken = x.clone().requires_grad_(), x.clone().requires_grad_()
    expected, found = other(given), compiled(taken)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    weights = torch.randn(expected.shape)
    wanted = torch.autograd.grad((expected * weights).sum(), [given, other.scale])
    got = torch.autograd.grad((found * weights).sum(), [taken, model.scale])
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("train", [False, True])
@both_ranks
def test_no_library_is_called(rank: int, train: bool) -> None:
    schedule = optfuse.optimize(Pools(rank), (images(rank),), train=train, options=OPTIONS)
    halves = (schedule.forward, schedule.backward) if isinstance(schedule, optfuse.TrainingSchedule) else (schedule,)
    assert [half.library_ops for half in halves] == [()] * len(halves)


@both_ranks
def test_training_with_windows_that_are_too_large_for_loops(rank: int) -> None:
    kernel = {2: [7, 6], 3: [4, 5, 2]}[rank]
    pool = (nn.MaxPool2d if rank == 2 else nn.MaxPool3d)(kernel, 2, 1)
    x = images(rank)
    given, taken = x.clone().requires_grad_(), x.clone().requires_grad_()
    model = nn.Sequential(nn.Tanh(), pool, nn.Tanh())
    compiled: Any = torch.compile(model, backend="optfuse", options=OPTIONS)
    expected, found = model(given), compiled(taken)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    wanted, got = torch.autograd.grad(expected.sum(), given), torch.autograd.grad(found.sum(), taken)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
    schedule = optfuse.optimize(model, (given,), train=True, options=OPTIONS)
    assert isinstance(schedule, optfuse.TrainingSchedule)
    assert schedule.forward.library_ops == ("optfuse.max_pool.default",)
    assert schedule.backward.library_ops == ("optfuse.max_pool_backward.default",)


@both_ranks
def test_a_batch_and_images_of_changing_sizes(rank: int) -> None:
    pool = F.max_pool2d if rank == 2 else F.max_pool3d
    mean = F.avg_pool2d if rank == 2 else F.avg_pool3d

    def pools(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        maxima, positions = pool(x.exp(), 3, 2, 1, return_indices=True)
        return maxima, positions, mean(x, 2)

    compiled: Any = torch.compile(pools, backend="optfuse", options=OPTIONS, dynamic=True)
    for batch, rows in ((2, 4), (3, 6), (4, 5)):
        x = torch.randn(batch, 3, *(5, rows, 7)[-rank:])
        torch.testing.assert_close(compiled(x), pools(x), rtol=1e-6, atol=1e-6)


@both_ranks
def test_means_in_half_precision_round_once(rank: int) -> None:
    mean = F.avg_pool2d if rank == 2 else F.avg_pool3d
    x = images(rank).bfloat16()
    compiled: Any = torch.compile(lambda x: mean(x, 3, 2, 1), backend="optfuse", options=OPTIONS)
    assert torch.equal(compiled(x), mean(x.float(), 3, 2, 1).bfloat16())
