"""Convolutions of channels that are no whole vectors: which get zeros, what they compute, what is left out again."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import optfuse
from optfuse.compiler.frontend import Captured, capture, capture_training
from tests.compiler.frontend.running import assert_gradients_near_eagers
from tests.oracle.judging import OPTIONS

BF16 = torch.bfloat16
CONVOLUTION, WITH_RELU = torch.ops.aten.convolution.default, torch.ops.optfuse.convolution_relu.default
GRADIENT, PAD = torch.ops.aten.convolution_backward.default, torch.ops.aten.constant_pad_nd.default


def net(taken: int, made: int, window: int = 3, **options: Any) -> nn.Module:
    """A convolution with activations around it, so that loops write and read its images."""
    torch.manual_seed(0)
    convolution = nn.Conv2d(taken, made, window, **{"padding": window // 2, **options})
    return nn.Sequential(nn.SiLU(), convolution, nn.GELU()).to(BF16)


def images(channels: int, size: Sequence[int] = (24, 26)) -> Tensor:
    return torch.randn(2, channels, *size, generator=torch.Generator().manual_seed(1)).to(BF16)


def weights(captured: Captured) -> list[tuple[int, ...]]:
    """The sizes (made, taken) of the weights of a graph's convolutions and gradients."""
    found = []
    for node in captured.graph.graph.nodes:
        if node.target in (CONVOLUTION, WITH_RELU, GRADIENT):
            found.append(tuple(node.args[2 if node.target is GRADIENT else 1].meta["val"].shape[:2]))
    return found


@pytest.mark.parametrize(
    ("taken", "made", "expected"),
    [
        (18, 36, (40, 24)),
        (16, 20, (24, 16)),
        (37, 16, (16, 40)),
        (16, 32, (32, 16)),
        (4, 20, (24, 8)),
        (18, 2, (2, 18)),
    ],
)
def test_whole_vectors(taken: int, made: int, expected: tuple[int, int]) -> None:
    """Two channels that are made stay two; another pass has given the four that are taken zeros."""
    assert weights(capture(net(taken, made), (images(taken),), name="model")) == [expected]


def test_weights_larger_than_images_stay() -> None:
    wide = net(1500, 1502, 1)
    assert weights(capture(wide, (images(1500, (1, 1)),), name="model")) == [(1502, 1500)]
    assert weights(capture(wide, (images(1500, (24, 24)),), name="model")) == [(1504, 1504)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"bias": False}, marks=pytest.mark.slow),
        pytest.param({"stride": 2}, marks=pytest.mark.slow),
        pytest.param({"window": 1}, marks=pytest.mark.slow),
        {"window": 1, "stride": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "last", [pytest.param(False, id="channels first", marks=pytest.mark.slow), pytest.param(True, id="channels last")]
)
def test_results_and_gradients(options: dict[str, Any], *, last: bool) -> None:
    x = images(18, (48, 50)).to(memory_format=torch.channels_last if last else torch.contiguous_format)
    model = net(18, 37, **options)
    forward, backward = capture_training(model, (x.requires_grad_(),))
    assert weights(forward) == weights(backward) == [(40, 24)]
    assert_gradients_near_eagers(model, x, share=5e-3, options=OPTIONS)


def test_convolutions_in_a_row_keep_their_zeros() -> None:
    """Where nothing but ReLU lies between two, the images between them are padded and cut nowhere."""
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in ((18, 36), (36, 20), (20, 16))]
    layers = [layer for c in convolutions for layer in (c, nn.BatchNorm2d(c.out_channels), nn.ReLU())]
    model = nn.Sequential(*layers).to(BF16).eval()
    x = images(18)
    captured = capture(model, (x,), name="model")
    pads = captured.graph.graph.find_nodes(op="call_function", target=PAD)
    assert weights(captured) == [(40, 24), (24, 40), (16, 24)]
    assert [node.meta["val"].shape[1] for node in pads if node.meta["val"].shape[0] == 2] == [24]
    found = optfuse.optimize(model, (x,), options=OPTIONS).compile()(x)
    truth = deepcopy(model).double()(x.double())
    assert found.stride() == model(x).stride()
    assert (found.double() - truth).norm() / truth.norm() < 2e-2


def test_a_range_of_batches_has_one_graph() -> None:
    model = net(18, 20).eval()
    fast = torch.compile(model, backend="optfuse", dynamic=True)
    before = len(optfuse.compiled_graphs())
    for batch in (3, 5, 8):
        x = torch.randn(batch, 18, 24, 24).to(BF16)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x), rtol=2e-2, atol=2e-2)
    assert len(optfuse.compiled_graphs()) == before + 1
