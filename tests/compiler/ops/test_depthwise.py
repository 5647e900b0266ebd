"""The kernels of depthwise convolutions and their gradients, interpreted, against torch's in float64."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch

import optfuse.compiler.ops.depthwise
import optfuse.compiler.ops.depthwise_kernels
from optfuse.runtime.environment import mode, prepare

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")

#: Pixels, window, stride, padding and dilation; 20 channels, so that tiles are not full.
CASES = [
    ([37], [4], [1], [3], [1]),
    ([24], [3], [2], [1], [2]),
    ([7, 9], [9, 9], [1, 1], [4, 4], [1, 1]),
    ([9, 10], [3, 3], [2, 2], [1, 1], [1, 1]),
    ([8, 9], [5, 5], [2, 2], [2, 2], [1, 1]),
    ([8, 19], [2, 5], [3, 2], [0, 1], [1, 2]),
    ([7, 15], [1, 11], [1, 1], [0, 5], [1, 1]),
    ([9, 9], [7, 7], [1, 1], [9, 9], [3, 3]),
    ([4, 6, 5], [3, 3, 3], [1, 2, 1], [1, 1, 1], [1, 1, 1]),
]


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    """The module with its kernels interpreted."""
    prepare()
    importlib.reload(optfuse.compiler.ops.depthwise_kernels)
    return importlib.reload(optfuse.compiler.ops.depthwise)


def laid_out(x: torch.Tensor, last: bool) -> torch.Tensor:
    return x.movedim(1, -1).contiguous().movedim(-1, 1) if last else x


def far(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert found.shape == expected.shape
    return float((found.double() - expected).norm() / expected.norm())


#: Whether channels are last, and the dtype; every other case is quick with the first, the others with the second.
FORMS = {
    "channels last, bf16": (True, torch.bfloat16),
    "channels first, f32": (False, torch.float32),
    "channels last, f32": (True, torch.float32),
    "channels first, bf16": (False, torch.bfloat16),
}


@pytest.mark.parametrize(
    ("case", "last", "dtype"),
    [
        pytest.param(case, *form, id=f"{case}-{name}", marks=() if number == k % 2 else pytest.mark.slow)
        for k, case in enumerate(CASES)
        for number, (name, form) in enumerate(FORMS.items())
    ],
)
def test_against_float64(kernels: ModuleType, case: tuple[list[int], ...], last: bool, dtype: torch.dtype) -> None:
    pixels, window, stride, padding, dilation = case
    torch.manual_seed(sum(pixels))
    images = laid_out(torch.randn(2, 20, *pixels), last).to(dtype)
    weight = torch.randn(20, 1, *window).to(dtype)
    rest = (stride, padding, dilation, False, [0] * len(pixels), 20)
    expected = torch.ops.aten.convolution(images.double(), weight.double(), None, *rest)
    turned, numbers = weight.reshape(20, -1).t(), (window, stride, padding, dilation)
    bound = 4e-3 if dtype == torch.bfloat16 else 1e-6
    found = kernels.depthwise_by_kernel(images, turned, *numbers)
    assert far(found, expected) < bound
    assert (found.stride(1) == 1) == last

    gradient = laid_out(torch.randn(expected.shape), last).to(dtype)
    wanted = torch.ops.aten.convolution_backward(
        *(gradient.double(), images.double(), weight.double(), None, *rest, [True, True, False])
    )
    assert far(kernels.depthwise_images_by_kernel(gradient, turned, list(images.shape), *numbers), wanted[0]) < bound
    for parts in (1, 3):
        sums = kernels.depthwise_weights_by_kernel(gradient, images, parts, *numbers)
        assert sums.shape == (parts, turned.shape[0], 20)
        assert sums.dtype == torch.float32
        assert far(sums.sum(0).t().reshape(weight.shape), wanted[1]) < 2e-6


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_without_a_gpu_the_library_computes_the_same(kernels: ModuleType, last: bool) -> None:
    images, weight = laid_out(torch.randn(2, 6, 9, 8), last), torch.randn(9, 6)
    numbers = ([3, 3], [2, 2], [1, 1], [1, 1])
    found, made = (f(images, weight, *numbers) for f in (kernels.depthwise, kernels.depthwise_by_kernel))
    torch.testing.assert_close(found, made)
    assert found.stride() == made.stride()
    gradient = laid_out(torch.randn(found.shape), last)
    args = (gradient, weight, list(images.shape), *numbers)
    torch.testing.assert_close(kernels.depthwise_images(*args), kernels.depthwise_images_by_kernel(*args))
    made = kernels.depthwise_weights_by_kernel(gradient, images, 2, *numbers)
    torch.testing.assert_close(kernels.depthwise_weights(gradient, images, *numbers, 2).sum(0), made.sum(0))


def test_every_second_channel_is_channels_last(kernels: ModuleType) -> None:
    """As of a convolution that makes several channels of each one, whose gradients are depthwise convolutions'."""
    images = laid_out(torch.randn(2, 12, 9, 8), last=True)[:, ::2]
    weight, numbers = torch.randn(9, 6), ([3, 3], [1, 1], [1, 1], [1, 1])
    of_images = (images, weight, list(images.shape), *numbers)
    for found, made in (
        (kernels.depthwise(images, weight, *numbers), kernels.depthwise_by_kernel(images, weight, *numbers)),
        (kernels.depthwise_images(*of_images), kernels.depthwise_images_by_kernel(*of_images)),
    ):
        torch.testing.assert_close(found, made)
        assert found.is_contiguous(memory_format=torch.channels_last)
        assert found.stride() == made.stride()
