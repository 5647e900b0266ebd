"""Products of few rows: of the same rows and several matrices, or of each group of rows and a matrix of its own.

A decode step multiplies the same few rows by the weights of query, key and value, and by those of a gate and its
partner. Each product alone is too small to keep the memory busy, and a library splits its sum and adds the parts up in
a second kernel. On an H200, 32 rows of 2048 by 2048, 512 and 512 columns take 16.7 us in three calls and 6.9 in one
launch; by 8192 and 8192 columns 22.6 and 18.7. Weights of one byte an element are read as such.
"""

# pyright: basic
from __future__ import annotations

import torch
import triton
import triton.language as tl

from optfuse.compiler.ops.ready_kernels import launch_ready

#: The most products of a launch.
JOINT_PRODUCTS: int = 4
#: Of up to so many columns in all, tiles are narrow, so that there are enough of them.
JOINT_NARROW: int = 6144
#: The most rows for which a launch is faster than a library's calls, of narrow tiles and of others.
JOINT_NARROW_ROWS: int = 128
JOINT_ROWS: int = 64


@triton.jit
def joint_product_tile(
    tile,
    x,
    weight,
    bias,
    out,
    rows,
    columns,
    terms,
    x_row,
    weight_row,
    BIASED: tl.constexpr,
    TURNED: tl.constexpr,
    RBLOCK: tl.constexpr,
    CBLOCK: tl.constexpr,
    TBLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """All rows of some columns of x @ weight^T. TURNED: tensor cores see the columns as rows, of which they take 64."""
    row, cell = tl.arange(0, RBLOCK), tl.arange(0, TBLOCK)
    column = tile * CBLOCK + tl.arange(0, CBLOCK)
    x += row[:, None] * x_row + cell[None, :]
    weight += column[:, None].to(tl.int64) * weight_row + cell[None, :]
    total = tl.zeros((CBLOCK, RBLOCK) if TURNED else (RBLOCK, CBLOCK), tl.float32)
    for start in tl.range(0, terms, TBLOCK, num_stages=STAGES):
        inside = start + cell[None, :] < terms
        left = tl.load(x + start, (row[:, None] < rows) & inside, 0.0)
        right = tl.load(weight + start, (column[:, None] < columns) & inside, 0.0).to(left.dtype)
        total = tl.dot(right, tl.trans(left), total) if TURNED else tl.dot(left, tl.trans(right), total)
    found = tl.trans(total) if TURNED else total
    if BIASED:
        found += tl.load(bias + column, column < columns, 0.0).to(tl.float32)[None, :]
    places = out + row[:, None] * columns + column[None, :]
    tl.store(places, found.to(out.dtype.element_ty), (row[:, None] < rows) & (column[None, :] < columns))


@triton.jit
def joint_products_kernel(
    x,
    weight0,
    weight1,
    weight2,
    weight3,
    bias0,
    bias1,
    bias2,
    bias3,
    out,
    rows,
    columns0,
    columns1,
    columns2,
    columns3,
    terms,
    x_row,
    weight_row0,
    weight_row1,
    weight_row2,
    weight_row3,
    COUNT: tl.constexpr,
    BIASED: tl.constexpr,
    TURNED: tl.constexpr,
    RBLOCK: tl.constexpr,
    CBLOCK: tl.constexpr,
    TBLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Each program computes a tile of one of the products, which lie one after another in ``out``."""
    weights = (weight0, weight1, weight2, weight3)
    biases = (bias0, bias1, bias2, bias3)
    columns = (columns0, columns1, columns2, columns3)
    steps = (weight_row0, weight_row1, weight_row2, weight_row3)
    tile = tl.program_id(0)
    for k in tl.static_range(COUNT):
        tiles = tl.cdiv(columns[k], CBLOCK)
        if (tile >= 0) & (tile < tiles):
            joint_product_tile(
                tile, x, weights[k], biases[k], out, rows, columns[k], terms, x_row, steps[k],
                BIASED, TURNED, RBLOCK, CBLOCK, TBLOCK, STAGES,
            )  # fmt: skip
        tile -= tiles
        out += rows * columns[k]


@triton.jit
def grouped_products_kernel(
    x,
    weights,
    ends,
    out,
    columns,
    terms,
    x_row,
    weight,
    weight_row,
    TURNED: tl.constexpr,
    RBLOCK: tl.constexpr,
    CBLOCK: tl.constexpr,
    TBLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Each program computes some columns of one group's rows, and reads nothing where the group has none."""
    group = tl.program_id(1)
    first, last = tl.load(ends + group - 1, group > 0, 0), tl.load(ends + group)
    weights += group.to(tl.int64) * weight
    for start in range(first, last, RBLOCK):
        joint_product_tile(
            tl.program_id(0), x + start * x_row, weights, x, out + start * columns, last - start, columns, terms,
            x_row, weight_row, False, TURNED, RBLOCK, CBLOCK, TBLOCK, STAGES,
        )  # fmt: skip


def joint_products_tile(rows: int, columns: int, item_bytes: int = 2) -> tuple[bool, int, int, int, int, int]:
    """Whether tiles are turned, their rows, columns and terms, the stages and the warps, of measurements on an H200.

    ``item_bytes`` are those of a weight's element.
    """
    block = max(16, triton.next_power_of_2(rows))
    if columns > JOINT_NARROW:
        return (False, block, 64, 128, 5, 4) if item_bytes == 1 and block <= 32 else (True, block, 64, 128, 3, 4)
    if block > 64:
        return False, block, 32, 64, 5, 4
    if item_bytes == 1:
        return False, block, 16, 256, 5, 4
    if block > 32:
        return False, block, 32, 128, 5, 4
    return False, block, 32, 256, 5, 2 if block == 32 else 4


def joint_products(
    x: torch.Tensor, weights: list[torch.Tensor], biases: list[torch.Tensor], out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return x @ w^T, plus a bias if there are any, for each w of the weights: one after another, as a vector.

    x is (M, K) of at most ``JOINT_NARROW_ROWS`` rows, each weight (N, K), each bias (N,), in one half type and with
    contiguous rows; there are at most ``JOINT_PRODUCTS`` weights, and no biases or as many. A weight may be of a type
    of one byte, whose numbers the half type holds.
    """
    if not x.is_cuda:
        pairs = zip(weights, biases or [None] * len(weights), strict=True)
        found = torch.cat([torch.nn.functional.linear(x, w.to(x.dtype), bias).flatten() for w, bias in pairs])
        return found if out is None else out.copy_(found)
    if out is None:
        out = x.new_empty((x.shape[0] * sum(w.shape[0] for w in weights),))
    return joint_products_by_tiles(x, weights, biases, out)


def joint_products_by_tiles(
    x: torch.Tensor, weights: list[torch.Tensor], biases: list[torch.Tensor], out: torch.Tensor
) -> torch.Tensor:
    """As ``joint_products``, by the kernel."""
    rows, terms = x.shape
    columns = [w.shape[0] for w in weights]
    turned, *blocks, stages, warps = joint_products_tile(rows, sum(columns), max(w.element_size() for w in weights))
    count, missing = len(weights), JOINT_PRODUCTS - len(weights)
    given = [*weights, *[x] * missing, *(biases or [x] * count), *[x] * missing]
    numbers = (rows, *columns, *[0] * missing, terms, x.stride(0), *(w.stride(0) for w in weights), *[0] * missing)
    programs = sum(triton.cdiv(one, blocks[1]) for one in columns)
    constants = (count, bool(biases), turned, *blocks, stages)
    launch_ready(joint_products_kernel, (programs,), (x, *given, out), numbers, constants, warps, stages)
    return out


def grouped_products(
    x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the rows of each group of x times the group's matrix: (T, K) and (E, K, N) to (T, N).

    ``ends`` has the end of each group's rows, int32. Sums run along memory in x and in the weights, (E, K, N) of
    strides (., 1, .). What rows behind the last group hold is not said.
    """
    if out is None:
        out = x.new_empty((x.shape[0], weights.shape[2]))
    if not x.is_cuda:
        return out.copy_(torch.ops.aten._grouped_mm(x, weights, ends))  # noqa: SLF001 - it has no public name
    return grouped_products_by_tiles(x, weights, ends, out)


def grouped_products_by_tiles(
    x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """As ``grouped_products``, by the kernel."""
    groups, terms, columns = weights.shape
    rows = min(JOINT_ROWS, triton.cdiv(2 * x.shape[0], groups))
    turned, *blocks, stages, warps = joint_products_tile(rows, columns * groups)
    numbers = (columns, terms, x.stride(0), weights.stride(0), weights.stride(2))
    grid = (triton.cdiv(columns, blocks[1]), groups)
    constants = (turned, *blocks, stages)
    launch_ready(grouped_products_kernel, grid, (x, weights, ends, out), numbers, constants, warps, stages)
    return out
