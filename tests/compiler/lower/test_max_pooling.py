"""Max-pooling and its gradient as loops, against eager: strides, padding, gaps, ties, nan, layouts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from tests.compiler.lower.eager import check, nests

aten = torch.ops.aten
OURS = torch.ops.optfuse

#: kernel, stride, padding, dilation, ceil_mode
WINDOWS: dict[str, tuple[Any, Any, Any, Any, bool]] = {
    "resnet": ([3, 3], [2, 2], [1, 1], [1, 1], False),
    "one number, no stride": ([2], [], [0], [1], False),
    "past the end": ([3, 2], [2, 3], [1, 0], [1, 1], True),
    "overlapping": ([3, 4], [1, 2], [1, 2], [1, 1], False),
    "gaps": ([2, 3], [2, 1], [1, 1], [2, 1], False),
    "apart": ([1, 2], [3, 4], [0, 1], [1, 1], False),
}


def images(channels_last: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    """Images with equal maxima, nan and windows of nothing but -inf."""
    x = torch.randint(-3, 3, (2, 3, 9, 8), generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0, 0, 4, 5] = torch.nan
    x[1, 2] = -torch.inf
    return x.to(memory_format=torch.channels_last) if channels_last else x


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", WINDOWS)
def test_maxima_and_positions(name: str, channels_last: bool) -> None:
    x, window = images(channels_last), WINDOWS[name]
    graph = check(lambda x: aten.max_pool2d_with_indices(x, *window), x)
    assert [len(nest.stores) for nest in nests(graph)] == [2]
    graph = check(lambda x: aten.max_pool2d_with_indices(x, *window)[0], x)
    assert [len(nest.stores) for nest in nests(graph)] == [1]


@pytest.mark.parametrize("name", WINDOWS)
def test_gradient(name: str) -> None:
    x, window = images(channels_last=True), WINDOWS[name]
    out, positions = aten.max_pool2d_with_indices(x, *window)
    grad = torch.randn(out.shape).to(memory_format=torch.channels_last)
    library = ["aten.max_pool2d_with_indices_backward.default"] if name == "gaps" else []
    check(
        lambda grad, x, positions: aten.max_pool2d_with_indices_backward(grad, x, *window, positions),
        *(grad, x, positions),
        library=library,
    )


@pytest.mark.parametrize("name", [name for name in WINDOWS if name not in ("gaps", "one number, no stride")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_offsets_in_the_window_say_the_same(name: str, dtype: torch.dtype) -> None:
    kernel, stride, padding, _, ceil_mode = WINDOWS[name]
    x, sizes = images(dtype=dtype), (kernel, stride, padding, ceil_mode)
    expected, positions = aten.max_pool2d_with_indices(x, *WINDOWS[name])
    out, offsets = OURS.max_pool(x, *sizes)
    assert torch.equal(out.nan_to_num(9), expected.nan_to_num(9))
    assert offsets.dtype == torch.int8
    grad = torch.randint(-9, 9, out.shape).to(dtype)  # sums are exact
    gradient = aten.max_pool2d_with_indices_backward(grad, x, *WINDOWS[name], positions)
    assert torch.equal(OURS.max_pool_backward(grad, x, *sizes, offsets), gradient)
    check(lambda x: OURS.max_pool(x, *sizes), x)
    check(lambda grad, x, offsets: OURS.max_pool_backward(grad, x, *sizes, offsets), grad, x, offsets)


def test_without_batch_and_in_one_dimension() -> None:
    check(lambda x: F.max_pool2d(x, 3, 2, 1), images()[0])
    check(lambda x: F.max_pool1d(x, 3), images()[0])


def test_large_windows_and_integers_are_the_librarys() -> None:
    target = "aten.max_pool2d_with_indices.default"
    check(lambda x: F.max_pool2d(x, 7, 1, 3), images(), library=[target])
    check(lambda x: F.max_pool2d(x, 2), torch.arange(16).reshape(1, 1, 4, 4), library=[target])
