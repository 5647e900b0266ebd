"""Max pooling that stores the offset of each maximum in its window, in one byte where ATen stores eight.

Generated kernels compute both directions; these functions define the results, and run where no kernel is generated.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

aten = torch.ops.aten

#: The most elements of a window that loops read, each by a load of its own. Larger ones are left to the library.
LARGEST_WINDOW = 36


def max_pool(
    x: torch.Tensor, kernel: list[int], stride: list[int], padding: list[int], ceil_mode: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest element of each window of the last two or three dimensions, and its offset there as int8.

    The offset is row-major. Each list has a number for each dimension of a window.
    """
    rank = len(kernel)
    out, positions = max_pool_positions(x, kernel, stride, padding, ceil_mode)
    corners = max_pool_corners(out, stride, padding)
    offsets, step = torch.zeros_like(positions), 1
    for d in reversed(range(rank)):
        size = x.shape[d - rank]
        offsets += (positions % size - corners[d]) * step
        positions, step = positions // size, step * kernel[d]
    return out, offsets.to(torch.int8)


def max_pool_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    offsets: torch.Tensor,
) -> torch.Tensor:
    """The gradient of ``max_pool``'s input, of which only the shape and layout count here."""
    rank, corners = len(kernel), max_pool_corners(grad, stride, padding)
    offsets, step = offsets.to(torch.int64), 1
    positions = torch.zeros_like(offsets)
    for d in reversed(range(rank)):
        positions += (corners[d] + offsets % kernel[d]) * step
        offsets, step = offsets // kernel[d], step * x.shape[d - rank]
    return max_pool_gradient(grad, x, kernel, stride, padding, ceil_mode, positions)


def max_pool_positions(
    x: torch.Tensor, kernel: list[int], stride: list[int], padding: list[int], ceil_mode: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result of ATen's max pooling over windows of two or three dimensions, and the positions in the image."""
    pool = aten.max_pool2d_with_indices if len(kernel) == 2 else aten.max_pool3d_with_indices
    return pool(x, kernel, stride, padding, [1] * len(kernel), ceil_mode)


def max_pool_gradient(
    grad: torch.Tensor,
    x: torch.Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    positions: torch.Tensor,
) -> torch.Tensor:
    """The gradient of ATen's max pooling over windows of two or three dimensions."""
    gradient = aten.max_pool2d_with_indices_backward if len(kernel) == 2 else aten.max_pool3d_with_indices_backward
    return gradient(grad, x, kernel, stride, padding, [1] * len(kernel), ceil_mode, positions)


def max_pool_corners(out: torch.Tensor, stride: list[int], padding: list[int]) -> list[torch.Tensor]:
    """Where the windows begin along each dimension of the image, in shapes such as (OH, 1) and (OW,)."""
    rank = len(stride)
    starts = [torch.arange(out.shape[d - rank], device=out.device) * stride[d] - padding[d] for d in range(rank)]
    return [start.view([-1] + [1] * (rank - 1 - d)) for d, start in enumerate(starts)]


def per_dimension(given: Sequence[int] | int, rank: int) -> tuple[int, ...]:
    """ATen's argument of a pooling, one number for all dimensions of a window or one for each, as one for each."""
    values = [given] if isinstance(given, int) else [int(value) for value in given]
    return tuple(values * rank if len(values) == 1 else values)
