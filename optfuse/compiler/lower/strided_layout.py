"""Strided layouts as index expressions: the loop variable of each dimension, and the address of an element."""

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
    return sympy.Add(sympy.sympify(offset), *terms)


def memory_order(dims: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """``dims`` from the largest stride to the smallest. Broadcast dimensions (stride 0) come first."""
    return tuple(sorted(dims, key=lambda d: -stride[d] if stride[d] else -math.inf))


def loop_variables(
    shape: Sequence[int], parallel: Sequence[int], reduced: Sequence[int] = ()
) -> tuple[Index, tuple[int, ...], tuple[int, ...]]:
    """The logical index (an expression for each dimension of ``shape``), and the sizes of its i and r variables.

    The dimensions ``parallel`` get i variables and ``reduced`` r variables, in the order given. Dimensions of size 1
    get none: their index is 0.
    """
    index: list[sympy.Expr] = [ZERO] * len(shape)
    walked = [d for d in parallel if shape[d] != 1]
    folded = [d for d in reduced if shape[d] != 1]
    for k, d in enumerate(walked):
        index[d] = ivar(k)
    for k, d in enumerate(folded):
        index[d] = rvar(k)
    return tuple(index), tuple(shape[d] for d in walked), tuple(shape[d] for d in folded)


def overlaps(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether two indices may share an element; True for some unusual layouts without overlap, too."""
    extent = 1
    for n, s in sorted(((n, s) for n, s in zip(shape, stride, strict=True) if n > 1), key=lambda pair: pair[1]):
        if s < extent:
            return True
        extent = s * (n - 1) + extent
    return False


def same_layout(shape: Sequence[int], a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two strides give the elements of a tensor the same addresses (sizes of 0 and 1 do not matter)."""
    return 0 in shape or all(x == y for n, x, y in zip(shape, a, b, strict=True) if n != 1)
