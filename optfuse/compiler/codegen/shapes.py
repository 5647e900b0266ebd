"""How a tile is laid out in text, so that Triton's compiler finds the vectors that are there."""

from __future__ import annotations

import math
from collections.abc import Sequence

from optfuse.compiler.codegen.indexing import Axis
from optfuse.compiler.codegen.tiles import Access

#: Blocks of a row are at least so long if neighbours share accumulators.
LEAST_ROW = 256
#: Blocks of a column walk that are under way at once, and the bytes that a program may have of those ahead.
STAGES = 3
MOST_AHEAD = 24 << 10


def trims(axes: Sequence[Axis], accesses: Sequence[Access]) -> bool:
    """Whether the last, ragged block of long rows is walked apart.

    The other blocks have no masks then. A mask that ends within a vector would even split all vectors.
    """
    r = axes[-1]
    along = any(access.contiguous(r.digits) for access in accesses)
    return r.walk == "looped" and r.masked and along and r.size >= 4 * r.block


def prefetches(axes: Sequence[Axis], accesses: Sequence[Access]) -> bool:
    """Whether a walk down columns loads its blocks ahead, into shared memory: they are small enough, and several."""
    r = axes[-1]
    if r.walk != "looped" or r.block == 1 or r.size < 4 * r.block:
        return False
    digits = tuple(digit for axis in axes for digit in axis.digits)
    tiles = [a for a in accesses if not a.store and a.contiguous(axes[0].digits) and a.size(digits) > a.size(r.digits)]
    held = math.prod(axis.block for axis in axes) * sum(access.bits for access in tiles) // 8
    return bool(tiles) and (STAGES - 1) * held <= MOST_AHEAD


def turned(axes: Sequence[Axis], accesses: Sequence[Access]) -> bool:
    """Whether the last of two parallel axes comes first in the tile's shape.

    Where no access looks contiguous to the compiler, it gives neighbouring threads neighbours along the tile's first
    dimension. Rows of 49 elements look so: they are an index modulo 49, of which a power of two knows nothing.
    """
    if len(axes) != 2 or any(axis.walk != "parallel" for axis in axes):
        return False
    digits = tuple(digit for axis in axes for digit in axis.digits)
    largest = max((access.size(digits) for access in accesses), default=0)
    large = [access for access in accesses if 4 * access.size(digits) >= largest]
    hidden = any(access.contiguous(axes[1].digits) and _run(axes[1], access) % 2 for access in large)
    return hidden and not any(access.contiguous(axes[0].digits) for access in large)


def _run(axis: Axis, access: Access) -> int:
    """How many neighbours along an axis are neighbours in memory, from a multiple of that on; 0: all of them."""
    points = 1
    for symbol, size in reversed(axis.digits):
        if access.coefficients.get(symbol, 0) != points:
            return points
        points *= size
    return 0
