"""Depthwise convolutions, one filter a channel, and their gradients, for the windows that libraries are slow at.

cuDNN has kernels for windows of 3 x 3, 5 x 5 and 7 x 7 pixels of channels-last images. For others, as 9 x 9, one line
of pixels, a dilation, lines of text and videos, it takes several times as long as these kernels, for 9 x 9 eighteen.

Shapes: images (N, C, L), (N, C, H, W) or (N, C, D, H, W) in any layout, channels best last; weights (taps, C), the taps
of a window in row-major order. Products are added up in float32.
"""

# pyright: basic
from __future__ import annotations

import functools
import operator

import torch
import triton

from optfuse.compiler.ops.depthwise_kernels import depthwise_images_kernel, depthwise_kernel, depthwise_weights_kernel
from optfuse.compiler.ops.ready_kernels import launch_ready

aten = torch.ops.aten

#: Columns and channels of tiles where channels lie side by side: those that are filled best, and first of equal ones.
DEPTHWISE_TILES: tuple[tuple[int, int], ...] = ((16, 64), (32, 32), (8, 128))

#: The most columns of a tile where columns lie side by side.
DEPTHWISE_LINE: int = 128

#: Elements of a tile.
DEPTHWISE_TILE: int = 1024


def depthwise(
    images: torch.Tensor,
    weight: torch.Tensor,
    window: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> torch.Tensor:
    """Each channel of ``images`` convolved with its own filter, in the layout of ``images``."""
    if images.is_cuda:
        return depthwise_by_kernel(images, weight, window, stride, padding, dilation)
    filters, rest = depthwise_filters(weight, window), (stride, padding, dilation, False, [0] * len(window))
    found = aten.convolution(images, filters, None, *rest, images.shape[1])
    return depthwise_empty(images, list(found.shape)).copy_(found)


def depthwise_by_kernel(images: torch.Tensor, weight: torch.Tensor, *numbers: list[int]) -> torch.Tensor:
    """As ``depthwise``, by the kernel."""
    window, stride, padding, dilation = numbers
    out = depthwise_empty(images, depthwise_sizes(images, window, stride, padding, dilation))
    columns = out.shape[-1]
    tile = depthwise_tile(out, columns)
    lines = out.numel() // out.shape[1] // columns
    grid = (lines * triton.cdiv(columns, tile[0]), triton.cdiv(out.shape[1], tile[1]))
    sizes = (*depthwise_numbers(images, out, padding), *depthwise_steps(images), *depthwise_steps(out))
    constants = (*depthwise_constants(window, stride, dilation), *tile)
    launch_ready(depthwise_kernel, grid, (images, weight.contiguous(), out), sizes, constants, 4, 3)
    return out


def depthwise_images(
    gradient: torch.Tensor,
    weight: torch.Tensor,
    size: list[int],
    window: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> torch.Tensor:
    """The gradient of ``depthwise``'s images, of shape ``size``, in the layout of the result's gradient."""
    if gradient.is_cuda:
        return depthwise_images_by_kernel(gradient, weight, size, window, stride, padding, dilation)
    out, filters = depthwise_empty(gradient, size), depthwise_filters(weight, window)
    rest = (stride, padding, dilation, False, [0] * len(window), size[1], [True, False, False])
    return out.copy_(aten.convolution_backward(gradient, torch.empty_like(out), filters, None, *rest)[0])


def depthwise_images_by_kernel(
    gradient: torch.Tensor, weight: torch.Tensor, size: list[int], *numbers: list[int]
) -> torch.Tensor:
    """As ``depthwise_images``, by the kernel."""
    window, stride, padding, dilation = numbers
    out, step = depthwise_empty(gradient, size), stride[-1]
    columns = triton.cdiv(out.shape[-1], step)
    tile = depthwise_tile(out, columns)
    lines = out.numel() // out.shape[1] // out.shape[-1]
    grid = (lines * step * triton.cdiv(columns, tile[0]), triton.cdiv(out.shape[1], tile[1]))
    sizes = (*depthwise_numbers(out, gradient, padding), *depthwise_steps(gradient), *depthwise_steps(out))
    constants = (*depthwise_constants(window, stride, dilation), *tile)
    launch_ready(depthwise_images_kernel, grid, (gradient, weight.contiguous(), out), sizes, constants, 4, 3)
    return out


def depthwise_weights(
    gradient: torch.Tensor,
    images: torch.Tensor,
    window: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    parts: int,
) -> torch.Tensor:
    """The gradient of ``depthwise``'s weights in float32 as (parts, taps, C): each part is the sum over some rows."""
    if images.is_cuda:
        return depthwise_weights_by_kernel(gradient, images, parts, window, stride, padding, dilation)
    channels = images.shape[1]
    filters = images.new_empty((channels, 1, *window), dtype=torch.float32)
    rest = (stride, padding, dilation, False, [0] * len(window), channels, [False, True, False])
    found = aten.convolution_backward(gradient.float(), images.float(), filters, None, *rest)[1]
    out = filters.new_zeros((parts, depthwise_count(window), channels))
    out[0].copy_(found.reshape(channels, -1).t())
    return out


def depthwise_weights_by_kernel(
    gradient: torch.Tensor, images: torch.Tensor, parts: int, *numbers: list[int]
) -> torch.Tensor:
    """As ``depthwise_weights``, by the kernel."""
    window, stride, padding, dilation = numbers
    channels, columns, across = images.shape[1], gradient.shape[-1], window[-1]
    out = images.new_empty((parts, depthwise_count(window), channels), dtype=torch.float32)
    lines = gradient.numel() // channels // columns
    taps = 1 if across == 1 else 2 if across <= 3 else 4
    tile = depthwise_tile(images, columns)
    rows = depthwise_count(window) // across
    grid = (rows * triton.cdiv(across, taps), parts, triton.cdiv(channels, tile[1]))
    sizes = (*depthwise_numbers(images, gradient, padding), *depthwise_steps(gradient), *depthwise_steps(images))
    sizes = (*sizes, lines, triton.cdiv(lines, parts))
    constants = (*depthwise_constants(window, stride, dilation), taps, *tile)
    launch_ready(depthwise_weights_kernel, grid, (gradient, images, out), sizes, constants, 4, 3)
    return out


def depthwise_count(window: list[int]) -> int:
    """How many taps a window has."""
    return functools.reduce(operator.mul, window, 1)


def depthwise_filters(weight: torch.Tensor, window: list[int]) -> torch.Tensor:
    """Weights (taps, C) as torch's convolutions have them: (C, 1, ...)."""
    return weight.t().reshape(-1, 1, *window)


def depthwise_sizes(
    images: torch.Tensor, window: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> list[int]:
    """The shape of a convolution's result."""
    sizes = list(images.shape[:2])
    for k, size in enumerate(images.shape[2:]):
        sizes.append((size + 2 * padding[k] - dilation[k] * (window[k] - 1) - 1) // stride[k] + 1)
    return sizes


def depthwise_empty(images: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """A new tensor of these sizes, with channels last where those of ``images`` are, and otherwise row-major."""
    if not lie_channels_last(images):
        return images.new_empty(sizes)
    count, channels, *pixels = sizes
    made = images.new_empty([count, *pixels, channels])
    return made.permute(0, made.dim() - 1, *range(1, made.dim() - 1))


def lie_channels_last(images: torch.Tensor) -> bool:
    """Whether channels lie closer than columns: side by side, or as every second one of them does."""
    return images.stride(1) == 1 or images.stride(1) < images.stride(-1)


def depthwise_tile(images: torch.Tensor, columns: int) -> tuple[int, int]:
    """Columns and channels of a tile, for rows of so many columns."""
    channels = images.shape[1]
    if not lie_channels_last(images):
        wide = min(DEPTHWISE_LINE, triton.next_power_of_2(columns))
        return wide, min(DEPTHWISE_TILE // wide, triton.next_power_of_2(channels))
    tiles = [(triton.cdiv(columns, x) * triton.cdiv(channels, c), k) for k, (x, c) in enumerate(DEPTHWISE_TILES)]
    return DEPTHWISE_TILES[min(tiles)[1]]


def depthwise_numbers(images: torch.Tensor, out: torch.Tensor, padding: list[int]) -> list[int]:
    """Channels, three sizes of the images, three of the result, and the padding, for kernels over (N, C, D, H, W)."""
    missing = 5 - images.dim()
    sizes = [*[1] * missing, *images.shape[2:], *[1] * missing, *out.shape[2:]]
    return [images.shape[1], *sizes, *[0] * missing, *padding]


def depthwise_steps(x: torch.Tensor) -> list[int]:
    """The strides of images as (N, C, D, H, W)."""
    return [*x.stride()[:2], *[0] * (5 - x.dim()), *x.stride()[2:]]


def depthwise_constants(window: list[int], stride: list[int], dilation: list[int]) -> list[int]:
    """A window's sizes, steps and distances, each along three dimensions."""
    missing = [1] * (3 - len(window))
    return [*missing, *window, *missing, *stride, *missing, *dilation]
