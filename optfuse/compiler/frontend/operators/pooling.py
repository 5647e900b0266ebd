"""Averages of windows in the form that loops take: two or three dimensions, and few elements or rows to reduce.

The first argument ``rank`` is the number of dimensions of a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from optfuse.compiler.ops.max_pool import LARGEST_WINDOW, per_dimension

aten = torch.ops.aten


def average_pool1d(
    self: Tensor,
    kernel_size: list[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """``avg_pool1d`` of images of one row."""
    step = list(stride) or kernel_size
    sizes = [1, *kernel_size], [1, *step], [0, *padding]
    return aten.avg_pool2d(self.unsqueeze(-2), *sizes, ceil_mode, count_include_pad).squeeze(-2)


def average_pool(
    rank: int,
    self: Tensor,
    kernel_size: list[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """``avg_pool2d`` or ``avg_pool3d`` of large windows that tile the image, as a mean; others stay."""
    kernel = per_dimension(kernel_size, rank)
    tiles = per_dimension(stride or kernel_size, rank) == kernel and not any(padding) and divisor_override is None
    counts = _counts(self, kernel)
    if not tiles or counts is None or prod(kernel) <= LARGEST_WINDOW:
        return NotImplemented
    apart = [n for pair in zip(counts, kernel, strict=True) for n in pair]
    return self.reshape(*self.shape[:-rank], *apart).mean(list(range(1 - 2 * rank, 0, 2)))


def adaptive_average_pool(rank: int, self: Tensor, output_size: list[int]) -> Tensor:
    """``adaptive_avg_pool2d`` or ``3d`` as ``avg_pool2d`` or ``3d`` where all windows are alike."""
    kernel = _counts(self, output_size)
    pool = aten.avg_pool2d if rank == 2 else aten.avg_pool3d
    return NotImplemented if kernel is None else pool(self, kernel)


def adaptive_average_pool_backward(rank: int, grad_output: Tensor, self: Tensor) -> Tensor:
    """The gradient of the same."""
    kernel = _counts(self, grad_output.shape[-rank:])
    if kernel is None:
        return NotImplemented
    gradient = aten.avg_pool2d_backward if rank == 2 else aten.avg_pool3d_backward
    return gradient(grad_output, self, kernel, [], [0] * rank, False, True, None)


def _counts(image: Tensor, parts: Sequence[int]) -> list[int] | None:
    """How often a part fits in each of an image's last dimensions; None where one does not divide it, or changes."""
    sizes = image.shape[-len(parts) :]
    if not all(
        type(n) is int and type(part) is int and part and n % part == 0 for n, part in zip(sizes, parts, strict=True)
    ):
        return None
    return [n // part for n, part in zip(sizes, parts, strict=True)]
