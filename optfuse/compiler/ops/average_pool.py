"""The gradient of average pooling over windows that are too large for loops.

Torch's kernel for channels-last images that are padded takes other windows than those that hold a pixel, on a GPU and
without an error (seen with torch 2.11, pytorch/pytorch#188344). Its kernel for channels-first images is right.
"""

from __future__ import annotations

import torch

aten = torch.ops.aten


def average_pool_backward(
    grad: torch.Tensor,
    images: torch.Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> torch.Tensor:
    """``aten.avg_pool2d_backward``, of padded images with the channels first."""
    if any(padding):
        images = images.new_empty(images.shape)  # only their shape and layout count
    return aten.avg_pool2d_backward(
        grad, images, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
    )
