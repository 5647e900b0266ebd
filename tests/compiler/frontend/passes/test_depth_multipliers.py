"""Depthwise convolutions that make several channels of each one: as many depthwise ones, with the same results."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import optfuse
from optfuse.compiler.frontend import Captured, capture, capture_training
from tests.oracle.judging import OPTIONS

BF16 = torch.bfloat16
CONVOLUTION, GRADIENT = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default


def model(made: int, *, bias: bool = False, stride: int = 2) -> nn.Module:
    """A grouped convolution between two that are not."""
    torch.manual_seed(0)
    grouped = nn.Conv2d(8, 8 * made, 5, stride, 2, groups=8, bias=bias)
    return nn.Sequential(nn.Conv2d(8, 8, 1), nn.GELU(), grouped, nn.GELU(), nn.Conv2d(8 * made, 8, 1)).to(BF16)


def images(batch: int = 2) -> Tensor:
    return torch.randn(batch, 8, 12, 10, generator=torch.Generator().manual_seed(1)).to(BF16)


def groups(captured: Captured, target: Any) -> list[tuple[int, ...]]:
    """The shapes of the weights of a graph's grouped convolutions, or of the gradients of them."""
    place = 2 if target is GRADIENT else 1
    found = captured.graph.graph.find_nodes(op="call_function", target=target)
    return [tuple(node.args[place].meta["val"].shape) for node in found if node.args[7 + place] > 1]


@pytest.mark.parametrize(("made", "count"), [(1, 1), (2, 2), (3, 3), (5, 1)])
def test_each_makes_one_channel_of_each(made: int, count: int) -> None:
    forward, backward = capture_training(
        model(made), (images(64),)
    )  # of so many the library has the gradient of weights
    expected = [(8 * made // count, 1, 5, 5)] * count
    assert groups(forward, CONVOLUTION) == groups(backward, GRADIENT) == expected


def test_groups_that_take_several_channels_stay() -> None:
    """Of so many channels, that one convolution of all of them is no faster."""
    net = nn.Conv2d(384, 768, 5, groups=192, padding=2).to(BF16).eval()
    captured = capture(net, (torch.randn(2, 384, 12, 10).to(BF16),), name="model")
    assert groups(captured, CONVOLUTION) == [(768, 2, 5, 5)]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.spread(3)
def test_results_and_gradients(stride: int, layout: torch.memory_format, *, bias: bool) -> None:
    net, x = model(2, bias=bias, stride=stride), images().to(memory_format=layout).requires_grad_()

    def step(run: Any, net: nn.Module, x: Tensor) -> list[Tensor]:
        given = x.detach().requires_grad_()
        y = run(given)
        return [y, *torch.autograd.grad(y.square().mean(), [given, *net.parameters()])]

    truth = deepcopy(net).double()
    fast = optfuse.optimize(net, (x,), train=True, options=OPTIONS).compile()
    found, eager, exacts = step(fast, net, x), step(net, net, x), step(truth, truth, x.double())
    for ours, theirs, exact in zip(found, eager, exacts, strict=True):
        assert ours.shape == exact.shape
        assert (ours.double() - exact).norm() <= 1.5 * (theirs.double() - exact).norm() + 2e-3 * exact.norm()


def test_the_images_that_are_made_are_channels_last() -> None:
    captured = capture(model(2).eval(), (images(),), name="model")
    (stacked,) = captured.graph.graph.find_nodes(op="call_function", target=torch.ops.aten.stack.default)
    (joined,) = stacked.users
    assert joined.meta["val"].is_contiguous(memory_format=torch.channels_last)
