"""Max-pooling and its gradient as loops, against eager: strides, padding, gaps, ties, nan, layouts.

Windows have two or three dimensions: ``rank``.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from optfuse.compiler.ir.interpreter import interpret
from tests.compiler.lower.eager import check, lowered, nests

aten = torch.ops.aten
OURS = torch.ops.optfuse

POOLS = {2: aten.max_pool2d_with_indices, 3: aten.max_pool3d_with_indices}
GRADIENTS = {2: aten.max_pool2d_with_indices_backward, 3: aten.max_pool3d_with_indices_backward}
CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}

#: kernel, stride, padding, dilation, ceil_mode; windows of two dimensions have no first one
WINDOWS: dict[str, tuple[Any, Any, Any, Any, bool]] = {
    "resnet": ([3, 3, 3], [2, 2, 2], [1, 1, 1], [1, 1, 1], False),
    "one number, no stride": ([2], [], [0], [1], False),
    "past the end": ([2, 3, 2], [3, 2, 3], [1, 1, 0], [1, 1, 1], True),
    "overlapping": ([2, 3, 4], [1, 1, 2], [0, 1, 2], [1, 1, 1], False),
    "gaps": ([2, 2, 3], [1, 2, 1], [1, 1, 1], [3, 2, 1], False),
    "apart": ([2, 1, 2], [4, 3, 4], [1, 0, 1], [1, 1, 1], False),
}
both_ranks = pytest.mark.parametrize("rank", [2, 3])


def window_of(name: str, rank: int) -> tuple[Any, Any, Any, Any, bool]:
    *numbers, ceil_mode = WINDOWS[name]
    kernel, stride, padding, dilation = (given[-rank:] for given in numbers)
    return kernel, stride, padding, dilation, ceil_mode


def images(rank: int, channels_last: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    """Images with equal maxima, nan and windows of nothing but -inf.

    Not of the latter with the channels last in three dimensions: there ATen's kernel for the CPU counts no planes.
    """
    shape = (2, 3, *(5, 9, 8)[-rank:])
    x = torch.randint(-3, 3, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0, 0, ..., 4, 5] = torch.nan
    if rank == 2 or not channels_last:
        x[1, 2] = -torch.inf
    return x.to(memory_format=CHANNELS_LAST[rank]) if channels_last else x


@both_ranks
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", WINDOWS)
def test_maxima_and_positions(name: str, channels_last: bool, rank: int) -> None:
    x, window = images(rank, channels_last), window_of(name, rank)
    graph = check(lambda x: POOLS[rank](x, *window), x)
    assert [len(nest.stores) for nest in nests(graph)] == [2]
    graph = check(lambda x: POOLS[rank](x, *window)[0], x)
    assert [len(nest.stores) for nest in nests(graph)] == [1]


@both_ranks
@pytest.mark.parametrize("name", WINDOWS)
def test_gradient(name: str, rank: int) -> None:
    x, window = images(rank, channels_last=True), window_of(name, rank)
    window = (window[0], window[1] or window[0], *window[2:])
    out, positions = POOLS[rank](x, *window)
    grad = torch.randn(out.shape).to(memory_format=CHANNELS_LAST[rank])
    library = [str(GRADIENTS[rank].default)] if name == "gaps" else []
    check(
        lambda grad, x, positions: GRADIENTS[rank](grad, x, *window, positions),
        *(grad, x, positions),
        library=library,
    )


@both_ranks
@pytest.mark.parametrize("name", [name for name in WINDOWS if name not in ("gaps", "one number, no stride")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_offsets_in_the_window_say_the_same(name: str, dtype: torch.dtype, rank: int) -> None:
    kernel, stride, padding, dilation, ceil_mode = window_of(name, rank)
    x, sizes = images(rank, dtype=dtype), (kernel, stride, padding, ceil_mode)
    expected, positions = POOLS[rank](x, kernel, stride, padding, dilation, ceil_mode)
    out, offsets = OURS.max_pool(x, *sizes)
    assert torch.equal(out.nan_to_num(9), expected.nan_to_num(9))
    assert offsets.dtype == torch.int8
    grad = torch.randint(-9, 9, out.shape).to(dtype)  # sums are exact
    gradient = GRADIENTS[rank](grad, x, kernel, stride, padding, dilation, ceil_mode, positions)
    assert torch.equal(OURS.max_pool_backward(grad, x, *sizes, offsets), gradient)
    check(lambda x: OURS.max_pool(x, *sizes), x)
    check(lambda grad, x, offsets: OURS.max_pool_backward(grad, x, *sizes, offsets), grad, x, offsets)


def test_without_batch_and_in_one_dimension() -> None:
    check(lambda x: F.max_pool3d(x, 3, 2, 1), images(3)[0])
    check(lambda x: F.max_pool3d(x, 2, return_indices=True), images(3)[0])
    check(lambda x: F.max_pool2d(x, 3, 2, 1), images(2)[0])
    check(lambda x: F.max_pool1d(x, 3), images(2)[0])


@both_ranks
def test_the_first_of_equal_maxima_and_the_last_nan_are_taken(rank: int) -> None:
    x = torch.zeros(1, 1, *[4] * rank)
    x[0, 0, ..., 2:, 2:] = torch.nan
    (graph, constants) = lowered(lambda x: POOLS[rank](x, [2]), x)
    _, positions = interpret(graph, [x], constants)
    assert torch.equal(positions, POOLS[rank](x, [2])[1])
    assert positions.flatten()[0] == 0
    assert positions.flatten()[-1] == 4**rank - 1


@both_ranks
def test_of_nothing_but_minus_infinity_the_first_element_in_the_image_is_taken(rank: int) -> None:
    x = torch.full((1, 2, *[4] * rank), -torch.inf)
    window = [3], [2], [1]
    _, expected = POOLS[rank](x, *window)
    x = x.to(memory_format=CHANNELS_LAST[rank])
    graph, constants = lowered(lambda x: POOLS[rank](x, *window), x)
    assert torch.equal(interpret(graph, [x], constants)[1], expected)
    assert expected[0, 0].flatten()[-1] == sum(4**d for d in range(rank))


@both_ranks
def test_large_windows_integers_and_no_images_are_the_librarys(rank: int) -> None:
    library = [str(POOLS[rank].default)]
    check(lambda x: POOLS[rank](x, [4] * rank, [1], [2])[0], images(rank), library=library if rank == 3 else [])
    check(lambda x: POOLS[rank](x, [5, 2, 7][-rank:] if rank == 3 else [7], [1])[0], images(rank), library=library)
    check(lambda x: POOLS[rank](x, [2])[0], torch.arange(4**rank).reshape(1, 1, *[4] * rank), library=library)
    check(lambda x: POOLS[rank](x, [2]), images(rank)[:0], library=library)
