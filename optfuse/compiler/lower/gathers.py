"""Lowering rules of gathers: elements at positions that other tensors hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optfuse.compiler.ir.nodes import Expr, View, tvar
from optfuse.compiler.lower.builder import Builder
from optfuse.compiler.lower.expressions import call, like
from optfuse.compiler.lower.registry import Declined, Uniform, Value, lowers
from optfuse.compiler.lower.strided_layout import Index

Tensor = View | Uniform

#: Dtypes of positions; others are masks.
POSITIONS = ("int64", "int32")


def wrapped(position: Expr, size: int) -> Expr:
    """A position with a negative one counted from the end, as in ATen's indexing."""
    return call("where", call("lt", position, like(0, position)), call("add", position, like(size, position)), position)


@lowers("aten.embedding.default")
def lower_embedding(builder: Builder, table: Tensor, ids: Tensor, *_: Any) -> Value:
    """Rows of a table. (Padding and frequencies matter to the gradient alone.)"""

    def at(index: Index) -> Expr:
        return builder.load(table, (tvar(0), index[-1]), indirect=(builder.load(ids, index[:-1]),))

    return builder.pointwise(at)


@lowers("aten.index_select.default")
def lower_index_select(builder: Builder, x: Tensor, dim: int, positions: Tensor) -> Value:
    """Slices of ``x`` along one dimension."""
    if not x.shape:
        return builder.copy(x)
    dim %= len(x.shape)

    def at(index: Index) -> Expr:
        taken = builder.load(positions, (index[dim],) if positions.shape else ())
        return builder.load(x, (*index[:dim], tvar(0), *index[dim + 1 :]), indirect=(taken,))

    return builder.pointwise(at)


@lowers("aten.gather.default")
def lower_gather(builder: Builder, x: Tensor, dim: int, positions: Tensor, *, sparse_grad: bool = False) -> Value:
    """``x`` at each index, but along ``dim`` at the position given there."""
    if not x.shape or not positions.shape:
        raise Declined("gather of or by a scalar")
    dim %= len(x.shape)

    def at(index: Index) -> Expr:
        return builder.load(x, (*index[:dim], tvar(0), *index[dim + 1 :]), indirect=(builder.load(positions, index),))

    return builder.pointwise(at)


@lowers("aten.index.Tensor", "aten._unsafe_index.Tensor")
def lower_index(builder: Builder, x: Tensor, positions: Sequence[Tensor | None]) -> Value:
    """Advanced indexing by integers: the broadcast positions take the place of the dimensions that they index.

    That place is the first indexed dimension's when the indexed ones are adjacent, and the front otherwise.
    """
    given = [(d, p) for d, p in enumerate(positions) if p is not None]
    if any(builder.dtype(p) not in POSITIONS for _, p in given):
        raise Declined("indexing by a mask")
    rank = max(len(p.shape) for _, p in given)
    dims = [d for d, _ in given]
    if len(builder.spec.shape) != len(x.shape) - len(dims) + rank:
        raise Declined("a result of another rank")  # tracing is mistaken where scalars and vectors index together
    start = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0
    checked = "_unsafe_index" not in str(builder.node.target)  # its callers have computed the places

    def at(index: Index) -> Expr:
        where = index[start : start + rank]
        rest = iter((*index[:start], *index[start + rank :]))
        order = {d: k for k, d in enumerate(dims)}
        source = [tvar(order[d]) if d in order else next(rest) for d in range(len(x.shape))]
        taken = tuple(wrapped(builder.load(p, where), x.shape[d]) for d, p in given)
        return builder.load(x, source, indirect=taken, checked=checked)

    return builder.pointwise(at)
