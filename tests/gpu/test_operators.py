"""Our operators' own kernels on a GPU, against torch in float64: signs and quotients are C's there, not Python's."""

from __future__ import annotations

import pytest
import torch

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from optfuse.compiler.ops.average_pool import average_pool_backward
from tests.compiler.ops.test_convolution_weights import CASES as WEIGHTS
from tests.compiler.ops.test_depthwise import CASES as DEPTHWISE
from tests.compiler.ops.test_depthwise import far, laid_out

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICE = "cuda"
aten, ours = torch.ops.aten, torch.ops.optfuse


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("case", DEPTHWISE, ids=str)
def test_depthwise(case: tuple[list[int], ...], last: bool, dtype: torch.dtype) -> None:
    pixels, window, stride, padding, dilation = case
    torch.manual_seed(sum(pixels))
    images = laid_out(torch.randn(3, 72, *pixels), last).to(dtype).to(DEVICE)
    weight = torch.randn(72, 1, *window).to(dtype).to(DEVICE)
    rest = (stride, padding, dilation, False, [0] * len(pixels), 72)
    numbers, turned = (window, stride, padding, dilation), weight.reshape(72, -1).t()
    bound = 4e-3 if dtype == torch.bfloat16 else 2e-6
    expected = aten.convolution(images.double(), weight.double(), None, *rest)
    gradient = laid_out(torch.randn(expected.shape), last).to(dtype).to(DEVICE)
    wanted = aten.convolution_backward(
        *(gradient.double(), images.double(), weight.double(), None, *rest, [True, True, False])
    )
    for _ in range(2):  # the second time from the table of kernels
        assert far(ours.depthwise(images, turned, *numbers), expected) < bound
        assert far(ours.depthwise_images(gradient, turned, list(images.shape), *numbers), wanted[0]) < bound
        sums = ours.depthwise_weights(gradient, images, *numbers, 3)
        assert far(sums.sum(0).t().reshape(weight.shape), wanted[1]) < 1e-5


@pytest.mark.parametrize("case", WEIGHTS, ids=str)
def test_gradients_of_weights(case: tuple) -> None:
    pixels, taken, made, groups, window, stride, padding, dilation = case
    torch.manual_seed(sum(pixels))
    images = torch.randn(2, groups * taken, *pixels).bfloat16().to(DEVICE)
    weight = torch.randn(groups * made, taken, *window).double().to(DEVICE)
    rest = (stride, padding, dilation, False, [0] * len(pixels), groups)
    gradient = torch.randn(aten.convolution(images.double(), weight, None, *rest).shape).bfloat16().to(DEVICE)
    wanted = aten.convolution_backward(
        *(gradient.double(), images.double(), weight, None, *rest, [False, True, False])
    )[1]
    for _ in range(2):
        sums = ours.convolution_weights(gradient, images, window, stride, padding, dilation, groups, 3)
        assert far(sums.sum(0).permute(1, 2, 0).reshape(weight.shape), wanted) < 1e-5


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_average_pool_backward(last: bool) -> None:
    torch.manual_seed(0)
    images = laid_out(torch.randn(2, 16, 20, 18), last)
    window = ([9, 9], [1, 1], [4, 4], False, True, None)
    gradient = laid_out(torch.randn(aten.avg_pool2d(images, *window).shape), last)
    wanted = aten.avg_pool2d_backward(gradient.double(), images.double(), *window)
    assert far(average_pool_backward(gradient.to(DEVICE), images.to(DEVICE), *window), wanted.to(DEVICE)) < 2e-6
