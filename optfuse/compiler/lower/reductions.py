"""Lowering rules of reductions: sums, products, extrema and their positions, logic, moments, norms.

To add one: register its overloads with ``@lowers``, bring the operand to the accumulation dtype, and call
``Builder.reduction`` with the domain (the input's shape and strides), the dimensions to fold, ``fold`` (the reductions
at an index) and ``finish`` (an expression an output of the node, from the results). Half types accumulate in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from optfuse.compiler.ir.buffer_layout import row_major
from optfuse.compiler.ir.dtypes import FLOATING
from optfuse.compiler.ir.nodes import Expr, Reduction, ReductionKind, View
from optfuse.compiler.ir.size_float import SizeFloat
from optfuse.compiler.ir.sizes import Size
from optfuse.compiler.lower.builder import Builder
from optfuse.compiler.lower.expressions import call, cast, compute_dtype, like, scalar, truth
from optfuse.compiler.lower.registry import Declined, Uniform, Value, lowers

Tensor = View | Uniform
Dims = int | Sequence[int] | None


def reduce(
    builder: Builder,
    x: Tensor,
    dims: Dims,
    fold: Callable[[Expr], tuple[Reduction, ...]],
    finish: Callable[..., tuple[Expr, ...]] = lambda *results: results,
    *,
    ordered: bool = False,
) -> tuple[View, ...]:
    """Emit the node's reduction of ``x``, and return its outputs.

    ``fold`` maps an element to the reductions, ``finish`` their results to the outputs, which are cast to their dtypes.
    """
    stride = x.stride if isinstance(x, View) else row_major(x.shape)
    dtypes = [compute_dtype(spec.dtype) for spec in builder.specs]
    return builder.reduction(
        x.shape,
        stride,
        reduced_dims(x, dims),
        lambda index: fold(builder.load(x, index)),
        lambda results, _: tuple(cast(e, dtype) for e, dtype in zip(finish(*results), dtypes, strict=True)),
        ordered=ordered,
    )


def reduced_dims(x: Tensor, dims: Dims) -> tuple[int, ...]:
    """The dimensions that ATen reduces: all if none are given, none of a scalar."""
    rank = len(x.shape)
    if isinstance(dims, int):
        dims = (dims,)
    named = dims if dims else range(rank)
    return tuple(sorted({d % rank for d in named})) if rank else ()


def reduced_count(x: Tensor, dims: Dims) -> int:
    """How many elements are reduced to one."""
    return math.prod(x.shape[d] for d in reduced_dims(x, dims))


@lowers("aten.sum.default", "aten.sum.dim_IntList")
def lower_sum(builder: Builder, x: Tensor, dims: Dims = None, _keepdim: bool = False, *, dtype: Any = None) -> Value:
    """The sum over ``dims`` (default: all). The output's dtype, given by ``dtype``, is the accumulation dtype."""
    accumulate = compute_dtype(builder.spec.dtype)
    if accumulate == "bool":
        raise Declined("a sum in bool")
    (out,) = reduce(builder, x, dims, lambda e: (Reduction("sum", cast(e, accumulate)),))
    return out


@lowers("aten.mean.default", "aten.mean.dim")
def lower_mean(builder: Builder, x: Tensor, dims: Dims = None, _keepdim: bool = False, *, dtype: Any = None) -> Value:
    """The sum over ``dims`` divided by the count, in the accumulation dtype."""
    accumulate = compute_dtype(builder.spec.dtype)
    count = scalar(reduced_count(x, dims), accumulate)
    (out,) = reduce(
        builder, x, dims, lambda e: (Reduction("sum", cast(e, accumulate)),), lambda total: (call("div", total, count),)
    )
    return out


@lowers("aten.prod.default", "aten.prod.dim_int")
def lower_prod(builder: Builder, x: Tensor, dim: Dims = None, _keepdim: bool = False, *, dtype: Any = None) -> Value:
    """The product over one dimension, or over all."""
    accumulate = compute_dtype(builder.spec.dtype)
    if accumulate == "bool":
        raise Declined("a product in bool")
    (out,) = reduce(builder, x, dim, lambda e: (Reduction("prod", cast(e, accumulate)),))
    return out


def extremum(kind: ReductionKind, element: Expr) -> Reduction:
    """The largest ("max") or smallest ("min") element; of bools, whether any or all are true."""
    if element.dtype == "bool":
        return Reduction("any" if kind == "max" else "all", element)
    return Reduction(kind, cast(element, compute_dtype(element.dtype)))


def position(kind: ReductionKind, element: Expr) -> Reduction:
    """The position of the first largest ("argmax") or smallest ("argmin") element."""
    return Reduction(kind, cast(element, "int32" if element.dtype == "bool" else compute_dtype(element.dtype)))


@lowers("aten.amax.default", "aten.max.default")
def lower_amax(builder: Builder, x: Tensor, dims: Dims = None, _keepdim: bool = False) -> Value:
    """The largest element over ``dims``; nan, if there is one."""
    (out,) = reduce(builder, x, dims, lambda e: (extremum("max", e),))
    return out


@lowers("aten.amin.default", "aten.min.default")
def lower_amin(builder: Builder, x: Tensor, dims: Dims = None, _keepdim: bool = False) -> Value:
    """The smallest element over ``dims``; nan, if there is one."""
    (out,) = reduce(builder, x, dims, lambda e: (extremum("min", e),))
    return out


@lowers("aten.aminmax.default")
def lower_aminmax(builder: Builder, x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Value:
    """The smallest and the largest element."""
    return reduce(builder, x, dim, lambda e: (extremum("min", e), extremum("max", e)))


@lowers("aten.max.dim")
def lower_max_dim(builder: Builder, x: Tensor, dim: int, _keepdim: bool = False) -> Value:
    """The largest element over one dimension, and its position."""
    return reduce(builder, x, dim, lambda e: (extremum("max", e), position("argmax", e)), ordered=True)


@lowers("aten.min.dim")
def lower_min_dim(builder: Builder, x: Tensor, dim: int, _keepdim: bool = False) -> Value:
    """The smallest element over one dimension, and its position."""
    return reduce(builder, x, dim, lambda e: (extremum("min", e), position("argmin", e)), ordered=True)


@lowers("aten.argmax.default")
def lower_argmax(builder: Builder, x: Tensor, dim: int | None = None, _keepdim: bool = False) -> Value:
    """The position of the first largest element, in one dimension or in the flattened tensor."""
    (out,) = reduce(builder, x, dim, lambda e: (position("argmax", e),), ordered=True)
    return out


@lowers("aten.argmin.default")
def lower_argmin(builder: Builder, x: Tensor, dim: int | None = None, _keepdim: bool = False) -> Value:
    """The position of the first smallest element, in one dimension or in the flattened tensor."""
    (out,) = reduce(builder, x, dim, lambda e: (position("argmin", e),), ordered=True)
    return out


def logical(builder: Builder, kind: ReductionKind, x: Tensor, dims: Dims) -> Value:
    """Whether any or all elements are not zero. Unlike other reductions, these fold no dimension when given none."""
    if dims is not None and not isinstance(dims, int) and not dims:
        dtype = builder.spec.dtype
        return builder.pointwise(lambda index: cast(truth(builder.load(x, index)), dtype))
    (out,) = reduce(builder, x, dims, lambda e: (Reduction(kind, truth(e)),))
    return out


@lowers("aten.any.default", "aten.any.dim", "aten.any.dims")
def lower_any(builder: Builder, x: Tensor, dims: Dims = None, _keepdim: bool = False) -> Value:
    """Whether any element is not zero. (ATen gives uint8 for uint8.)"""
    return logical(builder, "any", x, dims)


@lowers("aten.all.default", "aten.all.dim", "aten.all.dims")
def lower_all(builder: Builder, x: Tensor, dims: Dims = None, _keepdim: bool = False) -> Value:
    """Whether no element is zero. (ATen gives uint8 for uint8.)"""
    return logical(builder, "all", x, dims)


@lowers("aten.count_nonzero.default", "aten.count_nonzero.dim_IntList")
def lower_count_nonzero(builder: Builder, x: Tensor, dims: Dims = None) -> Value:
    """How many elements are not zero."""
    (out,) = reduce(builder, x, dims, lambda e: (Reduction("sum", cast(truth(e), "int64")),))
    return out


def moments(builder: Builder, x: Tensor, dims: Dims, correction: float | None, *, root: bool, mean: bool) -> Value:
    """Variance (or its root) by Welford's recurrence, and the mean if wanted.

    With fewer elements than ``correction`` the divisor is zero, as in ATen.
    """
    accumulate = compute_dtype(builder.specs[0].dtype)
    if accumulate not in FLOATING:
        raise Declined(f"a variance in {accumulate}")
    count, taken = reduced_count(x, dims), 1 if correction is None else correction
    taken = int(taken) if float(taken).is_integer() else taken
    # of a count that changes a fraction is taken in the kernel
    whole = isinstance(taken, int) or not isinstance(count, Size)
    left = count - taken if whole else SizeFloat.of("add", count, -taken)
    divisor = scalar(left if count >= math.ceil(taken) else 0, accumulate)

    def finish(average: Expr, squares: Expr, _count: Expr) -> tuple[Expr, ...]:
        spread = call("div", squares, divisor)
        spread = call("sqrt", spread) if root else spread
        return (spread, average) if mean else (spread,)

    outs = reduce(builder, x, dims, lambda e: (Reduction("welford", cast(e, accumulate)),), finish)
    return outs if mean else outs[0]


def _register_moments(name: str, *, root: bool, mean: bool) -> None:
    """Register the overloads of an operator that computes moments."""

    @lowers(f"aten.{name}.correction")
    def by_correction(
        builder: Builder, x: Tensor, dims: Dims = None, *, correction: float | None = None, keepdim: bool = False
    ) -> Value:
        return moments(builder, x, dims, correction, root=root, mean=mean)

    @lowers(f"aten.{name}.dim")
    def by_flag(builder: Builder, x: Tensor, dims: Dims = None, unbiased: bool = True, keepdim: bool = False) -> Value:
        return moments(builder, x, dims, int(unbiased), root=root, mean=mean)

    @lowers(f"aten.{name}.default")
    def of_all(builder: Builder, x: Tensor, unbiased: bool = True) -> Value:
        return moments(builder, x, None, int(unbiased), root=root, mean=mean)


_register_moments("var", root=False, mean=False)
_register_moments("std", root=True, mean=False)
_register_moments("var_mean", root=False, mean=True)
_register_moments("std_mean", root=True, mean=True)


@lowers("aten.linalg_vector_norm.default")
def lower_vector_norm(
    builder: Builder, x: Tensor, order: float = 2, dims: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    """The norm of that order of each vector along ``dims``."""
    accumulate = compute_dtype(builder.spec.dtype)
    if abs(order) == math.inf and reduced_count(x, dims) == 0:
        raise Declined("an extremum of nothing")

    def fold(element: Expr) -> tuple[Reduction, ...]:
        size = call("abs", cast(element, accumulate))
        if order == math.inf:
            return (Reduction("max", size),)
        if order == -math.inf:
            return (Reduction("min", size),)
        if order == 0:
            return (Reduction("sum", cast(truth(size), accumulate)),)
        if order == 1:
            return (Reduction("sum", size),)
        return (Reduction("sum", call("mul", size, size) if order == 2 else call("pow", size, like(order, size))),)

    def finish(total: Expr) -> tuple[Expr, ...]:
        if order in (0, 1, math.inf, -math.inf):
            return (total,)
        return (call("sqrt", total) if order == 2 else call("pow", total, like(1 / order, total)),)

    (out,) = reduce(builder, x, dims, fold, finish)
    return out
