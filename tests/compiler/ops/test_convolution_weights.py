"""The kernel of a convolution's gradient of the weights, interpreted, against torch's in float64."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch

import optfuse.compiler.ops.convolution_weights
from optfuse.runtime.environment import mode, prepare

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")

#: Pixels, channels taken and made by a group, groups, window, stride, padding and dilation.
CASES = [
    ([9, 10], 16, 24, 1, [3, 3], [1, 1], [1, 1], [1, 1]),
    ([11, 8], 8, 16, 2, [3, 3], [2, 2], [1, 1], [1, 1]),
    ([12, 9], 5, 7, 3, [4, 4], [1, 1], [0, 2], [1, 1]),
    ([8, 19], 80, 20, 1, [2, 5], [1, 3], [0, 1], [2, 2]),
    ([7, 7], 130, 150, 1, [3, 1], [1, 1], [1, 0], [1, 1]),
    ([4, 6, 5], 16, 16, 1, [3, 3, 3], [1, 2, 1], [1, 1, 1], [1, 1, 1]),
]


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    """The module with its kernels interpreted."""
    prepare()
    return importlib.reload(optfuse.compiler.ops.convolution_weights)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_float64(kernels: ModuleType, case: tuple, parts: int) -> None:
    pixels, taken, made, groups, window, stride, padding, dilation = case
    torch.manual_seed(sum(pixels))
    images = torch.randn(2, groups * taken, *pixels).bfloat16()
    weight = torch.randn(groups * made, taken, *window)
    rest = (stride, padding, dilation, False, [0] * len(pixels), groups)
    out = torch.ops.aten.convolution(images.float(), weight, None, *rest)
    gradient = torch.randn(out.shape).bfloat16()
    wanted = torch.ops.aten.convolution_backward(
        *(gradient.double(), images.double(), weight.double(), None, *rest, [False, True, False])
    )[1]
    numbers, taps = (window, stride, padding, dilation), wanted[0, 0].numel()
    for sums in (
        kernels.convolution_weights_by_kernel(gradient, images, groups, parts, *numbers),
        kernels.convolution_weights(gradient, images, *numbers, groups, parts),
    ):
        assert sums.shape == (parts, taps, groups * made, taken)
        assert sums.dtype == torch.float32
        found = sums.sum(0).permute(1, 2, 0).reshape(wanted.shape).double()
        assert (found - wanted).norm() / wanted.norm() < 2e-6
