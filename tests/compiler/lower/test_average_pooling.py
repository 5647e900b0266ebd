"""Average pooling and its gradient as loops, against eager: strides, padding, divisors, edges, layouts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import optfuse
from tests.compiler.lower.eager import check, nests

aten = torch.ops.aten

#: kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
WINDOWS: dict[str, tuple[Any, ...]] = {
    "halves": ([2, 2], [2, 2], [0, 0], False, True, None),
    "one number, no stride": ([3], [], [0], False, True, None),
    "with padding": ([3, 3], [1, 1], [1, 1], False, True, None),
    "without padding": ([3, 2], [2, 1], [1, 1], False, False, None),
    "past the end": ([3, 2], [2, 3], [1, 0], True, True, None),
    "past the end, without padding": ([3, 3], [2, 2], [1, 1], True, False, None),
    "past the end, overlapping": ([4, 3], [3, 1], [2, 1], True, False, None),
    "apart": ([1, 2], [3, 4], [0, 1], False, False, None),
    "a divisor": ([3, 3], [2, 2], [1, 1], True, False, 5),
}


def images(channels_last: bool = False, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.randn((2, 3, 9, 8), generator=torch.Generator().manual_seed(0)).to(dtype)
    return x.to(memory_format=torch.channels_last) if channels_last else x


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", WINDOWS)
def test_means(name: str, channels_last: bool) -> None:
    graph = check(lambda x: aten.avg_pool2d(x, *WINDOWS[name]), images(channels_last))
    assert len(nests(graph)) == 1


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", WINDOWS)
def test_gradient(name: str, channels_last: bool) -> None:
    x, window = images(channels_last), WINDOWS[name]
    sizes = (*window[:1], window[1] or window[0], *window[2:])
    grad = torch.randn(aten.avg_pool2d(x, *window).shape)
    if channels_last:
        grad = grad.to(memory_format=torch.channels_last)
    check(lambda grad, x: aten.avg_pool2d_backward(grad, x, *sizes), grad, x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    check(lambda x: aten.avg_pool2d(x, [3, 3], [2, 2], [1, 1]), images(dtype=dtype))


def test_one_image() -> None:
    check(lambda x: aten.avg_pool2d(x, [2, 2]), torch.randn(3, 9, 8))


def test_large_windows_are_the_librarys_but_their_gradient_is_not() -> None:
    x = torch.randn(2, 3, 14, 14)
    check(lambda x: aten.avg_pool2d(x, [7, 7]), x, library=["aten.avg_pool2d.default"])
    grad = torch.randn(2, 3, 2, 2)
    check(lambda grad, x: aten.avg_pool2d_backward(grad, x, [7, 7], [], [0, 0], False, True, None), grad, x)
    overlapping = "aten.avg_pool2d_backward.default"
    grad = torch.randn(2, 3, 8, 8)
    arguments = [7, 7], [1, 1], [0, 0], False, True, None
    check(lambda grad, x: aten.avg_pool2d_backward(grad, x, *arguments), grad, x, library=[overlapping])


def test_integers_are_the_librarys() -> None:
    x = torch.arange(72).reshape(1, 1, 9, 8)
    check(lambda x: aten.avg_pool2d(x, [2, 2]), x, library=["aten.avg_pool2d.default"])


@pytest.mark.parametrize("padding", [0, 4])
def test_the_librarys_gradient_of_padded_images_is_that_of_channels_first_ones(padding: int) -> None:
    """On a GPU torch's kernel for channels-last ones takes other windows."""
    x = torch.randn(2, 3, 13, 12).to(memory_format=torch.channels_last)
    window = ([9, 9], [1, 1], [padding, padding], False, True, None)
    grad = torch.randn(aten.avg_pool2d(x, *window).shape)
    found: list[torch.Tensor] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is aten.avg_pool2d_backward.default:
                found.append(args[1])
            return function(*args, **(kwargs or {}))

    class Pooled(torch.nn.Module):
        def forward(self, images: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
            return aten.avg_pool2d_backward(gradient, images, *window) * 2

    schedule = optfuse.optimize(Pooled(), (x, grad))
    assert isinstance(schedule, optfuse.Schedule)
    assert "aten.avg_pool2d_backward.default" in schedule.library_ops
    program = schedule.compile()
    with Watch():
        result = program(x, grad)
    torch.testing.assert_close(result, Pooled()(x.contiguous(), grad))
    assert [images.is_contiguous() for images in found] == [padding > 0]
    assert result.stride() == x.stride()
