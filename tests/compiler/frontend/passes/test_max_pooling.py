"""A pooling's gradient needs positions and a shape: its input is not saved, and gradients are eager's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from optfuse.compiler.frontend.aot_autograd.aot import as_traced
from optfuse.compiler.frontend.tracing.training import capture_training, train_module


class Stem(nn.Module):
    """How a ResNet begins, of two or three dimensions."""

    def __init__(self, activation: nn.Module, rank: int, window: tuple[int, int, int] = (3, 2, 1)) -> None:
        super().__init__()
        self.convolution = (nn.Conv2d if rank == 2 else nn.Conv3d)(3, 8, 3, padding=1, bias=False)
        self.norm = (nn.BatchNorm2d if rank == 2 else nn.BatchNorm3d)(8)
        self.activation = activation
        self.pool = (nn.MaxPool2d if rank == 2 else nn.MaxPool3d)(*window)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.activation(self.norm(self.convolution(x))))


def saved_images(model: nn.Module, x: Tensor) -> int:
    """How many values of the size of the convolution's result are kept for the backward graph."""
    _, backward = capture_training(model, (x,))
    return sum(node.meta["val"].numel() == x.numel() // 3 * 8 for node in backward.placeholders)


X = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
IMAGES = {2: X, 3: torch.randn(2, 3, 6, 8, 6, generator=torch.Generator().manual_seed(0))}
both_ranks = pytest.mark.parametrize("rank", [2, 3])


@both_ranks
def test_what_is_pooled_is_not_saved_beside_the_convolution(rank: int) -> None:
    assert saved_images(Stem(nn.ReLU(), rank), IMAGES[rank]) == 1


@both_ranks
def test_offsets_of_one_byte_are_saved(rank: int) -> None:
    _, backward = capture_training(Stem(nn.ReLU(), rank), (IMAGES[rank],))
    assert [node.meta["val"].dtype for node in backward.placeholders].count(torch.int8) == 1
    assert not [node for node in backward.placeholders if node.meta["val"].dtype == torch.int64]


@pytest.mark.parametrize("window", [(3, 2, 1), (2, 2, 0), (5, 4, 2)])
@both_ranks
def test_gradients_are_those_of_eager_execution(rank: int, window: tuple[int, int, int]) -> None:
    torch.manual_seed(1)
    model, x = Stem(nn.ReLU(), rank, window), IMAGES[rank]
    weights = list(model.parameters())
    expected = torch.autograd.grad(model(x).square().sum(), weights)
    step = train_module(model, (x,), {}, as_traced)
    got = torch.autograd.grad(step(x).square().sum(), weights)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_a_pooled_value_of_something_else_is_kept() -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.max_pool2d(self.linear(x).sin(), 2)

    _, backward = capture_training(Rows(), (X,))
    (gradient,) = backward.graph.graph.find_nodes(
        op="call_function", target=torch.ops.optfuse.max_pool_backward.default
    )
    assert gradient.args[1].meta["val"].shape == X.shape
