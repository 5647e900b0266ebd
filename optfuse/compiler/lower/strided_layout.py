"""Strided layouts as index expressions: which loop variable walks which dimension, and where an element lies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import sympy

from optfuse.compiler.ir.nodes import ivar, rvar

Index = tuple[sympy.Expr, ...]

ZERO = sympy.S.Zero


@lru_cache(maxsize=1 << 16)
def strided_index(shape: tuple[int, ...], stride: tuple[int, ...], offset: int, index: Index) -> sympy.Expr:
    """The element offset of ``index`` in a strided window, aligned from the right and broadcast where a size is 1."""
    aligned = index[len(index) - len(shape) :]
    terms = [i * s for i, n, s in zip(aligned, shape, stride, strict=True) if n != 1 and s != 0]
    return sympy.Add(sympy.Integer(offset), *terms)


def memory_order(dims: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """``dims`` from the slowest to the fastest in memory. Broadcast dimensions (stride 0) come first."""
    return tuple(sorted(dims, key=lambda d: -stride[d] if stride[d] else -math.inf))


def walk(
    shape: Sequence[int], parallel: Sequence[int], reduced: Sequence[int] = ()
) -> tuple[Index, tuple[int, ...], tuple[int, ...]]:
    """Give i variables to the dimensions ``parallel`` and r variables to ``reduced``, in the order given.

    Dimensions of size 1 get none: their index is 0. Returns the logical index (one expression a dimension of
    ``shape``), the sizes of the i variables and those of the r variables.
    """
    index: list[sympy.Expr] = [ZERO] * len(shape)
    walked = [d for d in parallel if shape[d] != 1]
    folded = [d for d in reduced if shape[d] != 1]
    for k, d in enumerate(walked):
        index[d] = ivar(k)
    for k, d in enumerate(folded):
        index[d] = rvar(k)
    return tuple(index), tuple(shape[d] for d in walked), tuple(shape[d] for d in folded)


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides as torch gives them (a size of 0 counts as 1)."""
    stride: list[int] = []
    step = 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last of a strided window, both included; 0 when it is empty."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


def overlaps(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether two indices may share an element (a safe test: it may say yes of an exotic layout that does not)."""
    extent = 1
    for n, s in sorted(((n, s) for n, s in zip(shape, stride, strict=True) if n > 1), key=lambda pair: pair[1]):
        if s < extent:
            return True
        extent = s * (n - 1) + extent
    return False


def same_layout(shape: Sequence[int], a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two strides put the elements of a tensor at the same places (sizes of 0 and 1 do not matter)."""
    return 0 in shape or all(x == y for n, x, y in zip(shape, a, b, strict=True) if n != 1)
