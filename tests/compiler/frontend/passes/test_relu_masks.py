"""The masks of ReLUs' gradients come from what the backward graph reads anyway, and gradients are eager's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Node

from optfuse.compiler.frontend.aot_autograd.aot import as_traced
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.graph.rewrite import base_of
from optfuse.compiler.frontend.tracing.training import capture_training, train_module


class Normalized(nn.Module):
    """A residual block: one ReLU of a batch norm alone, one of a sum with what came before it."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norms[0](self.convolutions[0](x)))
        y = torch.relu(self.norms[1](self.convolutions[1](x)))
        y = torch.relu(x + self.norms[2](self.convolutions[2](y)))
        return self.convolutions[3](y)


class Plain(nn.Module):
    """Convolutions with biases: their results are of no other use than the ReLUs'."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for convolution in self.convolutions:
            x = convolution(x).relu()
        return x


class Wide(nn.Module):
    """A feed-forward part, whose dropout drops nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow, self.drop = nn.Linear(16, 64, bias=False), nn.Linear(64, 16), nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(self.drop(torch.relu(self.wide(x))))


IMAGES = torch.randn(4, 8, 12, 12, generator=torch.Generator().manual_seed(0))
ROWS = torch.randn(4, 8, 16, generator=torch.Generator().manual_seed(0))
MODELS = [(Normalized, IMAGES), (Plain, IMAGES), (Wide, ROWS)]


def compared(half: Captured) -> list[Node]:
    """What the masks of a backward graph look at."""
    masks = half.graph.graph.find_nodes(op="call_function", target=torch.ops.aten.le.Scalar)
    return [base_of(mask.args[0]) for mask in masks]


def kept(half: Captured, elements: int) -> list[torch.dtype]:
    """The types of what a backward graph is given that has as many elements."""
    found = [node.meta["val"] for node in half.placeholders]
    return [value.dtype for value in found if isinstance(value, Tensor) and value.numel() == elements]


def test_after_a_norm_the_sign_is_that_of_its_input() -> None:
    torch.manual_seed(0)
    _, backward = capture_training(Normalized().train(), (IMAGES,))
    looked = compared(backward)
    assert [node.op for node in looked].count("call_function") == 2  # computed of a convolution's result
    assert [node.op for node in looked].count("placeholder") == 1  # the block's result, which a convolution reads
    assert torch.bool not in kept(backward, IMAGES.numel())


def test_what_only_a_relu_reads_is_not_kept() -> None:
    _, backward = capture_training(Plain().train(), (IMAGES,))
    assert kept(backward, IMAGES.numel()).count(torch.bool) <= 1  # of the last one, whose result leaves
    assert len(kept(backward, IMAGES.numel())) <= 5  # input, two results, the last mask or result, the gradient


def test_the_operand_of_a_product_is_kept_alone() -> None:
    _, backward = capture_training(Wide().train(), (ROWS,))
    assert kept(backward, 4 * 8 * 64) == [torch.float32]
    assert [node.op for node in compared(backward)] == ["placeholder"]


@pytest.mark.spread(4, 1)
@pytest.mark.parametrize(("kind", "x"), MODELS)
def test_gradients_are_those_of_eager_execution(kind: type[nn.Module], x: Tensor) -> None:
    torch.manual_seed(1)
    model = kind().train()
    weights = list(model.parameters())
    expected = torch.autograd.grad(model(x).square().sum(), weights)
    step = train_module(model, (x,), {}, as_traced)
    got = torch.autograd.grad(step(x).square().sum(), weights)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-3)
