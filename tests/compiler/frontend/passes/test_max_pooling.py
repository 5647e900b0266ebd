"""A pooling's gradient needs positions and a shape: its input is not saved, and gradients are eager's."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from optfuse.compiler.frontend.aot_autograd.aot import as_traced
from optfuse.compiler.frontend.tracing.training import capture_training, train_module


class Stem(nn.Module):
    """How a ResNet begins."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.max_pool2d(self.activation(self.norm(self.convolution(x))), 3, 2, 1)


def saved_images(model: nn.Module, x: Tensor) -> int:
    """How many values of the size of the convolution's result are kept for the backward graph."""
    _, backward = capture_training(model, (x,))
    return sum(node.meta["val"].numel() == 4 * 8 * 16 * 16 for node in backward.placeholders)


X = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def test_what_is_pooled_is_not_saved_beside_the_convolution() -> None:
    assert saved_images(Stem(nn.ReLU()), X) == 1


def test_gradients_are_those_of_eager_execution() -> None:
    torch.manual_seed(1)
    model = Stem(nn.ReLU())
    weights = list(model.parameters())
    expected = torch.autograd.grad(model(X).square().sum(), weights)
    step = train_module(model, (X,), {}, as_traced)
    got = torch.autograd.grad(step(X).square().sum(), weights)
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
