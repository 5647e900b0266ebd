"""Averages of windows in the form that loops take: two dimensions, and few elements or rows to reduce."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from optfuse.compiler.ops.max_pool import LARGEST_WINDOW

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


def average_pool2d(
    self: Tensor,
    kernel_size: list[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """``avg_pool2d`` of large windows that tile the image, as a mean; others stay."""
    kernel = _pair(kernel_size)
    tiles = _pair(list(stride) or kernel_size) == kernel and not any(padding) and divisor_override is None
    counts = _counts(self, kernel)
    if not tiles or counts is None or kernel[0] * kernel[1] <= LARGEST_WINDOW:
        return NotImplemented
    return self.reshape(*self.shape[:-2], counts[0], kernel[0], counts[1], kernel[1]).mean((-3, -1))


def adaptive_average_pool2d(self: Tensor, output_size: list[int]) -> Tensor:
    """``adaptive_avg_pool2d`` as ``avg_pool2d`` where all windows are alike."""
    kernel = _counts(self, output_size)
    return NotImplemented if kernel is None else aten.avg_pool2d(self, list(kernel))


def adaptive_average_pool2d_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    """The gradient of the same."""
    kernel = _counts(self, grad_output.shape[-2:])
    if kernel is None:
        return NotImplemented
    return aten.avg_pool2d_backward(grad_output, self, list(kernel), [], [0, 0], False, True, None)


def _pair(given: Sequence[int]) -> tuple[int, int]:
    return given[0], given[-1]


def _counts(image: Tensor, parts: Sequence[int]) -> tuple[int, int] | None:
    """How often a part fits in each of an image's dimensions; None where one does not divide it, or changes."""
    sizes = tuple(image.shape[-2:])
    if not all(
        type(n) is int and type(part) is int and part and n % part == 0 for n, part in zip(sizes, parts, strict=True)
    ):
        return None
    return sizes[0] // parts[0], sizes[1] // parts[1]
