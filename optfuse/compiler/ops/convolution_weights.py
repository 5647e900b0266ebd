"""The gradient of a convolution's weights, for the shapes that libraries are slow at: few channels, and wide groups.

A program keeps the sums of up to four taps of one row of the window for a block of the channels that are made by one of
those that are taken, and walks over a part of the pixels of all images. Each product is one of a tile of the result's
gradient, turned around, and of a tile of the images, on tensor cores, with sums in float32.

Shapes: images (N, groups * T, H, W) or (N, groups * T, D, H, W), the gradient (N, groups * M, ...), channels last both.
"""

# pyright: basic
from __future__ import annotations

import functools
import operator

import torch
import triton
import triton.language as tl

from optfuse.compiler.ops.ready_kernels import launch_ready

aten = torch.ops.aten

#: Pixels of a tile.
CONVOLUTION_PIXELS: int = 64

#: The most channels of a tile: of those that are made, and of those that are taken.
CONVOLUTION_MADE: int = 128
CONVOLUTION_TAKEN: int = 64


@triton.jit
def convolution_tap(total, turned, images, place, column, width, there, takes, channels, apart):
    """``total`` and the product of a tile of the gradient, turned around, and of the pixels that a tap reads for it."""
    inside = there & (column + apart >= 0) & (column + apart < width)
    x = tl.load(images + (place + apart).to(tl.int64)[:, None] * channels, inside[:, None] & takes, 0.0)
    return tl.dot(turned, x, total)


@triton.jit
def convolution_weights_kernel(
    gradient,
    images,
    out,
    pixels,
    share,
    groups,
    taken,
    made,
    depth,
    height,
    width,
    deep,
    rows,
    columns,
    pad_d,
    pad_h,
    pad_w,
    WINDOW_D: tl.constexpr,
    WINDOW_H: tl.constexpr,
    WINDOW_W: tl.constexpr,
    STRIDE_D: tl.constexpr,
    STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr,
    APART_D: tl.constexpr,
    APART_H: tl.constexpr,
    APART_W: tl.constexpr,
    TAPS: tl.constexpr,
    PBLOCK: tl.constexpr,
    MBLOCK: tl.constexpr,
    TBLOCK: tl.constexpr,
):
    """Sums of ``TAPS`` taps over ``share`` pixels, for a block of the channels of a group."""
    k, j = tl.program_id(0) // tl.cdiv(WINDOW_W, TAPS), tl.program_id(0) % tl.cdiv(WINDOW_W, TAPS) * TAPS
    across, along = tl.cdiv(taken, TBLOCK), tl.cdiv(made, MBLOCK)
    group = tl.program_id(2) // across // along
    maker = tl.program_id(2) // across % along * MBLOCK + tl.arange(0, MBLOCK)
    taker = tl.program_id(2) % across * TBLOCK + tl.arange(0, TBLOCK)
    makes, takes = (maker < made)[None, :], (taker < taken)[None, :]
    gradient += (group * made + maker)[None, :]
    images += (group * taken + taker)[None, :]
    sum0 = tl.zeros((MBLOCK, TBLOCK), tl.float32)
    sum1, sum2, sum3 = sum0, sum0, sum0
    first = tl.program_id(1) * share
    for start in range(first, tl.minimum(first + share, pixels), PBLOCK):
        pixel = start + tl.arange(0, PBLOCK)
        there = pixel < tl.minimum(first + share, pixels)
        g = tl.load(gradient + pixel.to(tl.int64)[:, None] * (groups * made), there[:, None] & makes, 0.0)
        turned = tl.trans(g)
        z = pixel // columns // rows % deep * STRIDE_D + k // WINDOW_H * APART_D - pad_d
        y = pixel // columns % rows * STRIDE_H + k % WINDOW_H * APART_H - pad_h
        x = pixel % columns * STRIDE_W + j * APART_W - pad_w
        n = pixel // columns // rows // deep
        place = ((n * depth + z) * height + y) * width + x
        there = there & (z >= 0) & (z < depth) & (y >= 0) & (y < height)
        count = groups * taken
        sum0 = convolution_tap(sum0, turned, images, place, x, width, there, takes, count, 0)
        if TAPS > 1:
            sum1 = convolution_tap(sum1, turned, images, place, x, width, there, takes, count, APART_W)
        if TAPS > 2:
            sum2 = convolution_tap(sum2, turned, images, place, x, width, there, takes, count, 2 * APART_W)
        if TAPS > 3:
            sum3 = convolution_tap(sum3, turned, images, place, x, width, there, takes, count, 3 * APART_W)
    tap = tl.program_id(1) * (WINDOW_D * WINDOW_H * WINDOW_W) + k * WINDOW_W + j
    size = groups * made * taken
    out += tap * size + (group * made + maker)[:, None] * taken + taker[None, :]
    known = (maker < made)[:, None] & takes
    tl.store(out, sum0, known)
    if TAPS > 1:
        tl.store(out + size, sum1, known & (j + 1 < WINDOW_W))
    if TAPS > 2:
        tl.store(out + 2 * size, sum2, known & (j + 2 < WINDOW_W))
    if TAPS > 3:
        tl.store(out + 3 * size, sum3, known & (j + 3 < WINDOW_W))


def convolution_weights(
    gradient: torch.Tensor,
    images: torch.Tensor,
    window: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    parts: int,
) -> torch.Tensor:
    """The gradient in float32 as (parts, taps, groups * M, T), each part the sum over some of the pixels."""
    if images.is_cuda:
        return convolution_weights_by_kernel(gradient, images, groups, parts, window, stride, padding, dilation)
    made, taken = gradient.shape[1], images.shape[1] // groups
    weight = images.new_empty((made, taken, *window), dtype=torch.float32)
    rest = (stride, padding, dilation, False, [0] * len(window), groups, [False, True, False])
    found = aten.convolution_backward(gradient.float(), images.float(), weight, None, *rest)[1]
    out = weight.new_zeros((parts, functools.reduce(operator.mul, window, 1), made, taken))
    out[0].copy_(found.reshape(made, taken, -1).permute(2, 0, 1))
    return out


def convolution_weights_by_kernel(
    gradient: torch.Tensor, images: torch.Tensor, groups: int, parts: int, *numbers: list[int]
) -> torch.Tensor:
    """As ``convolution_weights``, by the kernel."""
    window, stride, padding, dilation = numbers
    gradient, images = convolution_pixels_last(gradient), convolution_pixels_last(images)
    made, taken = gradient.shape[1] // groups, images.shape[1] // groups
    taps, across = functools.reduce(operator.mul, window, 1), window[-1]
    out = images.new_empty((parts, taps, groups * made, taken), dtype=torch.float32)
    pixels = gradient.numel() // gradient.shape[1]
    missing = [1] * (3 - len(window))
    sizes = [*missing, *images.shape[2:], *missing, *gradient.shape[2:], *[0] * len(missing), *padding]
    together = across if across <= 4 else 3
    rows = max(16, min(CONVOLUTION_MADE, triton.next_power_of_2(made)))
    width = max(16, min(CONVOLUTION_TAKEN, triton.next_power_of_2(taken)))
    grid = (
        taps // across * triton.cdiv(across, together),
        parts,
        groups * triton.cdiv(made, rows) * triton.cdiv(taken, width),
    )
    shape = (pixels, triton.cdiv(pixels, parts), groups, taken, made, *sizes)
    constants = (*missing, *window, *missing, *stride, *missing, *dilation, together, CONVOLUTION_PIXELS, rows, width)
    warps = 8 if rows * width * together > 16384 else 4
    launch_ready(convolution_weights_kernel, grid, (gradient, images, out), shape, constants, warps, 3)
    return out


def convolution_pixels_last(x: torch.Tensor) -> torch.Tensor:
    """Images with their channels last and without gaps, as they are or as a copy."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1)
