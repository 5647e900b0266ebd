"""Convolutions of few groups: which become one of all channels, with the same results and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from optfuse.compiler.frontend import Captured, capture, capture_training
from tests.compiler.frontend.running import assert_gradients_near_eagers
from tests.oracle.judging import OPTIONS

BF16 = torch.bfloat16
CONVOLUTION, GRADIENT = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default
SLOW = [pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((2, 16, 16), (3, 8, 16))]


def net(groups: int, taken: int, made: int, **options: Any) -> nn.Module:
    """A grouped convolution between activations."""
    torch.manual_seed(0)
    convolution = nn.Conv2d(groups * taken, groups * made, 3, padding=1, groups=groups, **options)
    return nn.Sequential(nn.SiLU(), convolution, nn.GELU()).to(BF16)


def images(channels: int) -> Tensor:
    return torch.randn(2, channels, 9, 8, generator=torch.Generator().manual_seed(1)).to(BF16)


def weights(captured: Captured) -> list[tuple[int, ...]]:
    """Groups, and the sizes (made, taken) of the weights, of a graph's convolutions and gradients."""
    found = []
    for node in captured.graph.graph.nodes:
        if node.target in (CONVOLUTION, GRADIENT):
            place = 1 + (node.target is GRADIENT)
            found.append((node.args[place + 7], *node.args[place].meta["val"].shape[:2]))
    return found


@pytest.mark.parametrize(
    ("groups", "taken", "made", "expected"),
    [
        (2, 32, 64, (1, 128, 64)),
        (8, 32, 64, (1, 512, 256)),
        (8, 64, 128, (8, 1024, 64)),
        (4, 16, 8, (1, 32, 64)),
        (2, 64, 64, (1, 128, 128)),
        (2, 128, 128, (2, 256, 128)),
        (4, 16, 16, (1, 64, 64)),
        (4, 32, 32, (4, 128, 32)),
        (16, 1, 1, (16, 16, 1)),
    ],
)
def test_groups_that_are_slow(groups: int, taken: int, made: int, expected: tuple[int, int, int]) -> None:
    assert weights(capture(net(groups, taken, made), (images(groups * taken),), name="model")) == [expected]


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"stride": 2}], ids=str)
@pytest.mark.parametrize(("groups", "taken", "made"), [(2, 8, 16), (4, 8, 4), *SLOW])
@pytest.mark.spread(2)
def test_results_and_gradients(groups: int, taken: int, made: int, options: dict[str, Any]) -> None:
    model, x = net(groups, taken, made, **options), images(groups * taken).requires_grad_()
    forward, backward = capture_training(model, (x,))
    assert {one[0] for one in weights(forward) + weights(backward)} == {1}
    assert_gradients_near_eagers(model, x, share=5e-3, options=OPTIONS)


@pytest.mark.parametrize("last", ["weights", "images", "both"])
def test_channels_last(last: str) -> None:
    model, x = net(4, 8, 4), images(32)
    if last != "images":
        model = model.to(memory_format=torch.channels_last)
    if last != "weights":
        x = x.to(memory_format=torch.channels_last)
    x.requires_grad_()
    forward, backward = capture_training(model, (x,))
    assert {one[0] for one in weights(forward) + weights(backward)} == {1}
    assert_gradients_near_eagers(model, x, share=5e-3, options=OPTIONS)
