"""Average pooling and its gradient as loops, against eager: strides, padding, divisors, edges, layouts.

Windows have two or three dimensions: ``rank``.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import optfuse
from optfuse.compiler.ir.interpreter import interpret
from tests.compiler.lower.eager import check, lowered, nests

aten = torch.ops.aten

POOLS = {2: aten.avg_pool2d, 3: aten.avg_pool3d}
GRADIENTS = {2: aten.avg_pool2d_backward, 3: aten.avg_pool3d_backward}
CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}

#: kernel, stride, padding, ceil_mode, count_include_pad, divisor_override; windows of two dimensions have no first one
WINDOWS: dict[str, tuple[Any, ...]] = {
    "halves": ([2, 2, 2], [2, 2, 2], [0, 0, 0], False, True, None),
    "one number, no stride": ([3], [], [0], False, True, None),
    "with padding": ([3, 3, 3], [1, 1, 1], [1, 1, 1], False, True, None),
    "without padding": ([2, 3, 2], [1, 2, 1], [0, 1, 1], False, False, None),
    "past the end": ([2, 3, 2], [3, 2, 3], [1, 1, 0], True, True, None),
    "past the end, without padding": ([2, 3, 3], [2, 2, 2], [0, 1, 1], True, False, None),
    "past the end, overlapping": ([3, 4, 3], [2, 3, 1], [1, 2, 1], True, False, None),
    "apart": ([2, 1, 2], [4, 3, 4], [1, 0, 1], False, False, None),
    "a divisor": ([2, 3, 3], [1, 2, 2], [1, 1, 1], True, False, 5),
}
both_ranks = pytest.mark.parametrize("rank", [2, 3])


def window_of(name: str, rank: int) -> tuple[Any, ...]:
    kernel, stride, padding, *rest = WINDOWS[name]
    return kernel[-rank:], stride[-rank:], padding[-rank:], *rest


def images(rank: int, channels_last: bool = False, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.randn((2, 3, *(5, 9, 8)[-rank:]), generator=torch.Generator().manual_seed(0)).to(dtype)
    return x.to(memory_format=CHANNELS_LAST[rank]) if channels_last else x


@both_ranks
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", WINDOWS)
def test_means(name: str, channels_last: bool, rank: int) -> None:
    graph = check(lambda x: POOLS[rank](x, *window_of(name, rank)), images(rank, channels_last))
    assert len(nests(graph)) == 1


@both_ranks
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", WINDOWS)
def test_gradient(name: str, channels_last: bool, rank: int) -> None:
    x, window = images(rank, channels_last), window_of(name, rank)
    sizes = (*window[:1], window[1] or window[0], *window[2:])
    grad = torch.randn(POOLS[rank](x, *window).shape)
    if channels_last:
        grad = grad.to(memory_format=CHANNELS_LAST[rank])
    check(lambda grad, x: GRADIENTS[rank](grad, x, *sizes), grad, x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    check(lambda x: aten.avg_pool2d(x, [3, 3], [2, 2], [1, 1]), images(2, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_in_three_dimensions_round_once(dtype: torch.dtype) -> None:
    """ATen has no such kernel on the CPU; on a GPU it adds up in float32."""
    x = images(3, dtype=dtype)
    graph, constants = lowered(lambda x: aten.avg_pool3d(x, [3], [2], [1]), x)
    (means,) = interpret(graph, [x], constants)
    assert torch.equal(means, aten.avg_pool3d(x.float(), [3], [2], [1]).to(dtype))


@both_ranks
def test_one_image(rank: int) -> None:
    x = images(rank)[0]
    check(lambda x: POOLS[rank](x, [2]), x)
    grad = torch.randn(POOLS[rank](x, [2]).shape)
    rest = ([2] * rank, [], [0] * rank, False, True, None)
    check(lambda grad, x: GRADIENTS[rank](grad, x, *rest), grad, x)


@both_ranks
def test_no_image(rank: int) -> None:
    x = images(rank)[:0]
    check(lambda x: POOLS[rank](x, [2]), x)
    grad = POOLS[rank](x, [2])
    rest = ([2] * rank, [], [0] * rank, False, True, None)
    check(lambda grad, x: GRADIENTS[rank](grad, x, *rest), grad, x)


@both_ranks
def test_large_windows_are_the_librarys_but_their_gradient_is_not(rank: int) -> None:
    kernel, counts = {2: ([7, 7], (2, 2)), 3: ([2, 5, 4], (3, 1, 2))}[rank]
    size = [k * n for k, n in zip(kernel, counts, strict=True)]
    x = torch.randn(2, 3, *size)
    check(lambda x: POOLS[rank](x, kernel), x, library=[str(POOLS[rank].default)])
    rest = [0] * rank, False, True, None
    check(lambda grad, x: GRADIENTS[rank](grad, x, kernel, [], *rest), torch.randn(2, 3, *counts), x)
    overlapping = torch.randn(2, 3, *(n - k + 1 for n, k in zip(size, kernel, strict=True)))
    library = [str(GRADIENTS[rank].default)]
    check(lambda grad, x: GRADIENTS[rank](grad, x, kernel, [1] * rank, *rest), overlapping, x, library=library)


@both_ranks
def test_integers_are_the_librarys(rank: int) -> None:
    x = torch.arange(72).reshape(1, 1, *{2: (9, 8), 3: (2, 9, 4)}[rank])
    check(lambda x: POOLS[rank](x, [2]), x, library=[str(POOLS[rank].default)])


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
