"""Lowering rule of products of a matrix and a vector: sums along the matrix's rows, which fuse as any reduction does.

Such a product reads each element of the matrix once, so memory decides its time, and a library's kernel has nothing to
gain from tensor cores. As loops it takes activations, norms and residuals into its kernel.
"""

from __future__ import annotations

from optfuse.compiler.ir.dtypes import FLOATING
from optfuse.compiler.ir.nodes import Expr, Reduction, View
from optfuse.compiler.ir.sizes import hint
from optfuse.compiler.lower.builder import Builder
from optfuse.compiler.lower.expressions import call, cast, compute_dtype
from optfuse.compiler.lower.registry import Declined, Uniform, Value, lowers
from optfuse.compiler.lower.strided_layout import Index

Tensor = View | Uniform

#: Sums of fewer terms stay a library's: there is next to nothing to read.
LEAST_TERMS = 64


@lowers("aten.mm.default")
def lower_mm(builder: Builder, a: Tensor, b: Tensor) -> Value:
    """``a @ b`` where one of the two is a single row or column, and the other's rows along the sum are contiguous."""
    return _matvec(builder, a, b, None)


@lowers("aten.addmm.default")
def lower_addmm(builder: Builder, bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Value:
    """``bias + a @ b``, as for ``lower_mm``."""
    if (beta, alpha) != (1, 1):
        raise Declined("scaled terms")
    return _matvec(builder, a, b, bias)


def _matvec(builder: Builder, a: Tensor, b: Tensor, bias: Tensor | None) -> Value:
    (rows, terms), columns = a.shape, b.shape[1]
    if (rows != 1 and columns != 1) or hint(terms) < LEAST_TERMS:
        raise Declined("a product of matrices")
    if builder.spec.dtype not in FLOATING:
        raise Declined("a product of integers")
    matrix, along = (b, 0) if rows == 1 else (a, 1)
    if not isinstance(matrix, View) or matrix.stride[along] != 1:
        raise Declined("a matrix whose sums run across its rows in memory")
    dtype = compute_dtype(builder.spec.dtype)

    def fold(index: Index) -> tuple[Reduction, ...]:
        row, column, term = index
        left, right = (cast(builder.load(x, at), dtype) for x, at in ((a, (row, term)), (b, (term, column))))
        return (Reduction("sum", call("mul", left, right)),)

    def finish(results: tuple[Expr, ...], index: Index) -> tuple[Expr, ...]:
        (total,) = results
        return (total if bias is None else call("add", total, cast(builder.load(bias, index[:2]), dtype)),)

    steps = (matrix.stride[0], 0, 1) if along else (0, matrix.stride[1], 1)
    (out,) = builder.reduction((rows, columns, terms), steps, (2,), fold, finish)
    return out
