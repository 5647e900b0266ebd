"""The Triton kernels of ``compiler.ops.depthwise``: a depthwise convolution and its gradients.

Tiles are (columns of pixels, channels); a program adds up the taps of a window in float32.
"""

# pyright: basic
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def depthwise_kernel(
    images,
    weight,
    out,
    channels,
    depth,
    height,
    width,
    deep,
    rows,
    columns,
    pad_d,
    pad_h,
    pad_w,
    image_n,
    image_c,
    image_d,
    image_h,
    image_w,
    out_n,
    out_c,
    out_d,
    out_h,
    out_w,
    WINDOW_D: tl.constexpr,
    WINDOW_H: tl.constexpr,
    WINDOW_W: tl.constexpr,
    STRIDE_D: tl.constexpr,
    STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr,
    APART_D: tl.constexpr,
    APART_H: tl.constexpr,
    APART_W: tl.constexpr,
    XBLOCK: tl.constexpr,
    CBLOCK: tl.constexpr,
):
    """A tile of one row of the result: some columns by some channels."""
    blocks = tl.cdiv(columns, XBLOCK)
    row = tl.program_id(0) // blocks
    column = tl.program_id(0) % blocks * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    channel = tl.program_id(1) * CBLOCK + tl.arange(0, CBLOCK)[None, :]
    known = channel < channels
    n, z, y = row // rows // deep, (row // rows % deep).to(tl.int64), (row % rows).to(tl.int64)
    images += n.to(tl.int64) * image_n + channel * image_c
    total = tl.zeros((XBLOCK, CBLOCK), tl.float32)
    for k in range(WINDOW_D * WINDOW_H):
        d = z * STRIDE_D + k // WINDOW_H * APART_D - pad_d
        h = y * STRIDE_H + k % WINDOW_H * APART_H - pad_h
        if (d >= 0) & (d < depth) & (h >= 0) & (h < height):
            line = images + d * image_d + h * image_h
            for j in tl.static_range(WINDOW_W):
                w = column * STRIDE_W + j * APART_W - pad_w
                x = tl.load(line + w * image_w, known & (w >= 0) & (w < width), 0.0)
                factor = tl.load(weight + (k * WINDOW_W + j) * channels + channel, known, 0.0)
                total += x.to(tl.float32) * factor.to(tl.float32)
    out += n.to(tl.int64) * out_n + z * out_d + y * out_h + channel * out_c + column * out_w
    tl.store(out, total.to(out.dtype.element_ty), known & (column < columns))


@triton.jit
def depthwise_images_kernel(
    gradient,
    weight,
    out,
    channels,
    depth,
    height,
    width,
    deep,
    rows,
    columns,
    pad_d,
    pad_h,
    pad_w,
    gradient_n,
    gradient_c,
    gradient_d,
    gradient_h,
    gradient_w,
    out_n,
    out_c,
    out_d,
    out_h,
    out_w,
    WINDOW_D: tl.constexpr,
    WINDOW_H: tl.constexpr,
    WINDOW_W: tl.constexpr,
    STRIDE_D: tl.constexpr,
    STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr,
    APART_D: tl.constexpr,
    APART_H: tl.constexpr,
    APART_W: tl.constexpr,
    XBLOCK: tl.constexpr,
    CBLOCK: tl.constexpr,
):
    """A tile of one row of the images: columns of one remainder by the stride, which the same taps reach."""
    blocks = tl.cdiv(tl.cdiv(width, STRIDE_W), XBLOCK)
    row = tl.program_id(0) // STRIDE_W // blocks
    first = tl.program_id(0) % STRIDE_W
    place = tl.program_id(0) // STRIDE_W % blocks * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    channel = tl.program_id(1) * CBLOCK + tl.arange(0, CBLOCK)[None, :]
    known = channel < channels
    n, z, y = row // height // depth, (row // height % depth).to(tl.int64), (row % height).to(tl.int64)
    gradient += n.to(tl.int64) * gradient_n + channel * gradient_c
    total = tl.zeros((XBLOCK, CBLOCK), tl.float32)
    for k in range(WINDOW_D * WINDOW_H):
        d = z + pad_d - k // WINDOW_H * APART_D
        h = y + pad_h - k % WINDOW_H * APART_H
        reached = (d >= 0) & (d < deep * STRIDE_D) & (h >= 0) & (h < rows * STRIDE_H)
        if reached & (d % STRIDE_D == 0) & (h % STRIDE_H == 0):
            line = gradient + d // STRIDE_D * gradient_d + h // STRIDE_H * gradient_h
            for j in tl.static_range(WINDOW_W):
                w = first + pad_w - j * APART_W
                if w % STRIDE_W == 0:
                    column = place + w // STRIDE_W
                    x = tl.load(line + column * gradient_w, known & (column >= 0) & (column < columns), 0.0)
                    factor = tl.load(weight + (k * WINDOW_W + j) * channels + channel, known, 0.0)
                    total += x.to(tl.float32) * factor.to(tl.float32)
    w = place * STRIDE_W + first
    out += n.to(tl.int64) * out_n + z * out_d + y * out_h + channel * out_c + w * out_w
    tl.store(out, total.to(out.dtype.element_ty), known & (w < width))


@triton.jit
def depthwise_products(total, gradient, line, w, image_w, width, known):
    """A tile of products of the gradient and the images that a tap reads for it, added to ``total``."""
    x = tl.load(line + w * image_w, known & (w >= 0) & (w < width), 0.0)
    return total + gradient * x.to(tl.float32)


@triton.jit
def depthwise_weights_kernel(
    gradient,
    images,
    out,
    channels,
    depth,
    height,
    width,
    deep,
    rows,
    columns,
    pad_d,
    pad_h,
    pad_w,
    gradient_n,
    gradient_c,
    gradient_d,
    gradient_h,
    gradient_w,
    image_n,
    image_c,
    image_d,
    image_h,
    image_w,
    lines,
    share,
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
    XBLOCK: tl.constexpr,
    CBLOCK: tl.constexpr,
):
    """Sums of some taps of one row of the window, over ``share`` of the gradient's rows."""
    k, j = tl.program_id(0) // tl.cdiv(WINDOW_W, TAPS), tl.program_id(0) % tl.cdiv(WINDOW_W, TAPS) * TAPS
    channel = tl.program_id(2) * CBLOCK + tl.arange(0, CBLOCK)[None, :]
    known = channel < channels
    gradient += channel * gradient_c
    images += channel * image_c
    sum0 = tl.zeros((XBLOCK, CBLOCK), tl.float32)
    sum1, sum2, sum3 = sum0, sum0, sum0
    first = tl.program_id(1) * share
    for row in range(first, tl.minimum(first + share, lines)):
        n, z, y = row // rows // deep, (row // rows % deep).to(tl.int64), (row % rows).to(tl.int64)
        d = z * STRIDE_D + k // WINDOW_H * APART_D - pad_d
        h = y * STRIDE_H + k % WINDOW_H * APART_H - pad_h
        if (d >= 0) & (d < depth) & (h >= 0) & (h < height):
            line = images + n.to(tl.int64) * image_n + d * image_d + h * image_h
            given = gradient + n.to(tl.int64) * gradient_n + z * gradient_d + y * gradient_h
            for start in range(0, columns, XBLOCK):
                column = start + tl.arange(0, XBLOCK)[:, None]
                inside = known & (column < columns)
                g = tl.load(given + column * gradient_w, inside, 0.0).to(tl.float32)
                w = column * STRIDE_W + j * APART_W - pad_w
                sum0 = depthwise_products(sum0, g, line, w, image_w, width, inside)
                if TAPS > 1:
                    sum1 = depthwise_products(sum1, g, line, w + APART_W, image_w, width, inside)
                if TAPS > 2:
                    sum2 = depthwise_products(sum2, g, line, w + 2 * APART_W, image_w, width, inside)
                    sum3 = depthwise_products(sum3, g, line, w + 3 * APART_W, image_w, width, inside)
    tap = tl.program_id(1) * (WINDOW_D * WINDOW_H * WINDOW_W) + k * WINDOW_W + j
    out += tap * channels + tl.program_id(2) * CBLOCK + tl.arange(0, CBLOCK)
    known = tl.program_id(2) * CBLOCK + tl.arange(0, CBLOCK) < channels
    tl.store(out, tl.sum(sum0, 0), known)
    if TAPS > 1:
        tl.store(out + channels, tl.sum(sum1, 0), known & (j + 1 < WINDOW_W))
    if TAPS > 2:
        tl.store(out + 2 * channels, tl.sum(sum2, 0), known & (j + 2 < WINDOW_W))
        tl.store(out + 3 * channels, tl.sum(sum3, 0), known & (j + 3 < WINDOW_W))
