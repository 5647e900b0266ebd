"""Gradients of convolutions' weights that our kernel computes: which they are, and what they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from optfuse.compiler.frontend.tracing.training import capture_training
from tests.compiler.frontend.running import assert_gradients_near_eagers, targets
from tests.oracle.judging import OPTIONS

BF16 = torch.bfloat16
OURS, GRADIENT = "optfuse.convolution_weights.default", "aten.convolution_backward.default"


def model(taken: int, made: int, **options: Any) -> nn.Module:
    """A convolution behind an activation, so that the gradient of its images is wanted as well."""
    torch.manual_seed(0)
    kind = options.pop("kind", nn.Conv2d)
    return nn.Sequential(nn.SiLU(), kind(taken, made, **{"kernel_size": 3, "padding": 1, **options})).to(BF16)


def images(channels: int, *pixels: int) -> Tensor:
    return torch.randn(4, channels, *pixels, generator=torch.Generator().manual_seed(1)).to(BF16)


#: Channels taken and made, options, and pixels.
CASES: dict[str, tuple[int, int, dict[str, Any], tuple[int, ...]]] = {
    "few channels": (16, 40, {}, (20, 16)),
    "every second": (32, 16, {"stride": 2, "bias": False}, (36, 32)),
    "a window of 2 x 4": (16, 17, {"kernel_size": (2, 4), "dilation": (2, 1), "padding": 0}, (20, 21)),
    "wide groups": (256, 256, {"groups": 2}, (14, 14)),
}


@pytest.mark.parametrize("case", CASES)
def test_training(case: str) -> None:
    taken, made, options, pixels = CASES[case]
    net, x = model(taken, made, **dict(options)), images(taken, *pixels).requires_grad_()
    found = targets(capture_training(net, (x,))[1])
    assert (found[OURS], found[GRADIENT]) == (1, 1)
    assert_gradients_near_eagers(net, x, share=5e-3, options=OPTIONS)


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        ((64, 64, {}, (20, 16)), BF16),
        ((24, 64, {}, (20, 16)), BF16),
        ((16, 40, {"kernel_size": 7, "padding": 3}, (20, 16)), BF16),
        ((16, 16, {"kind": nn.Conv3d}, (5, 9, 8)), BF16),
        ((16, 40, {"kernel_size": 1, "padding": 0}, (20, 16)), BF16),
        ((16, 40, {}, (8, 8)), BF16),
        ((16, 40, {}, (20, 16)), torch.float32),
    ],
    ids=["many channels", "24 channels", "a long window", "videos", "single pixels", "few pixels", "float32"],
)
def test_the_library_keeps_the_others(case: tuple[int, int, dict[str, Any], tuple[int, ...]], dtype: Any) -> None:
    taken, made, options, pixels = case
    net, x = model(taken, made, **options).to(dtype), images(taken, *pixels).to(dtype).requires_grad_()
    found = targets(capture_training(net, (x,))[1])
    assert (found[OURS], found[GRADIENT]) == (0, 1)


def test_nothing_stays_of_a_gradient_of_weights_alone() -> None:
    net = nn.Conv2d(16, 40, 3, padding=1, bias=False).to(BF16)
    found = targets(capture_training(net, (images(16, 20, 16),))[1])
    assert (found[OURS], found[GRADIENT]) == (1, 0)


def test_groups_that_make_more_channels_than_they_take() -> None:
    """Among convolutions that want channels last: alone it keeps the traced layout, in which the library is faster."""
    net = nn.Sequential(nn.Conv2d(320, 320, 3, padding=1), nn.Conv2d(320, 640, 3, groups=5)).to(BF16)
    found = targets(capture_training(net, (images(320, 20, 20).requires_grad_(),))[1])
    assert (found[OURS], found[GRADIENT]) == (1, 2)
