"""Max pooling that stores the offset of each maximum in its window, in one byte where ATen stores eight.

Generated kernels compute both directions; these functions define the results, and run where no kernel is generated.
"""

from __future__ import annotations

import torch

aten = torch.ops.aten

#: The most elements of a window that loops read, each by a load of its own. Larger ones are left to the library.
LARGEST_WINDOW = 36


def max_pool(
    x: torch.Tensor, kernel: list[int], stride: list[int], padding: list[int], ceil_mode: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest element of each window of (N, C, H, W), and its row-major offset in the window as int8."""
    out, positions = aten.max_pool2d_with_indices(x, kernel, stride, padding, [1, 1], ceil_mode)
    row, column = (positions // x.shape[-1], positions % x.shape[-1])
    top, left = max_pool_corners(out, stride, padding)
    return out, ((row - top) * kernel[1] + column - left).to(torch.int8)


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
    offsets = offsets.to(torch.int64)
    top, left = max_pool_corners(grad, stride, padding)
    positions = (top + offsets // kernel[1]) * x.shape[-1] + left + offsets % kernel[1]
    return aten.max_pool2d_with_indices_backward(grad, x, kernel, stride, padding, [1, 1], ceil_mode, positions)


def max_pool_corners(out: torch.Tensor, stride: list[int], padding: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and columns of the image where the windows begin, as (OH, 1) and (OW,)."""
    rows, columns = (torch.arange(n, device=out.device) for n in out.shape[-2:])
    return (rows * stride[0] - padding[0]).unsqueeze(-1), columns * stride[1] - padding[1]
