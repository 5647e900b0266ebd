"""Lowering rules of updates at positions that other tensors hold: rows of a cache, the gradient of a table.

Where a position occurs twice, each element gets one of the values given for it, and which one is not defined; what is
added is added in no fixed order. So it is in ATen, too, unless torch is asked to be deterministic: then the update is a
library call. Updates that are not in place are those of a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import sympy
import torch

from optfuse.compiler.ir.dtypes import ADDED, HALF
from optfuse.compiler.ir.nodes import Expr, Iota, View, memory_of, tvar
from optfuse.compiler.ir.sizes import Size, hint
from optfuse.compiler.lower.builder import Builder
from optfuse.compiler.lower.expressions import call, cast, compute_dtype, const, like, placed
from optfuse.compiler.lower.gathers import POSITIONS, wrapped
from optfuse.compiler.lower.registry import Declined, Uniform, Value, lowers
from optfuse.compiler.lower.strided_layout import Index, overlaps

Tensor = View | Uniform
Number = bool | int | float

#: The most terms, on average, of a sum in a half type.
MOST_TERMS = 16
_ADDED_IN_HALF = frozenset(
    {
        *(torch.ops.aten.index_add.default, torch.ops.aten.index_add_.default),
        *(torch.ops.aten.scatter_add.default, torch.ops.aten.scatter_add_.default),
    }
)

#: The most positions of a row that are compared with each of its elements, instead of stores into a copy.
MOST_CHOICES = 8


@lowers("aten.index_copy.default", "aten.index_copy_.default")
def lower_index_copy(builder: Builder, x: Tensor, dim: int, positions: Tensor, source: Tensor) -> Value:
    """Slices of ``source`` written over those of ``x`` at some positions of one dimension."""
    return _slices(builder, x, dim, positions, source, lambda index: builder.load(source, index), adds=False)


@lowers("aten.index_add.default", "aten.index_add_.default")
def lower_index_add(
    builder: Builder, x: Tensor, dim: int, positions: Tensor, source: Tensor, *, alpha: Number = 1
) -> Value:
    """Slices of ``source`` times ``alpha`` added to those of ``x`` at some positions of one dimension."""

    def scaled(index: Index) -> Expr:
        value = builder.load(source, index)
        if alpha == 1:
            return value
        value = cast(value, compute_dtype(value.dtype))
        return call("mul", value, like(alpha, value))

    return _slices(builder, x, dim, positions, source, scaled, adds=True)


def _slices(
    builder: Builder,
    x: Tensor,
    dim: int,
    positions: Tensor,
    source: Tensor,
    body: Callable[[Index], Expr],
    *,
    adds: bool,
) -> Value:
    if not x.shape or len(positions.shape) != 1 or len(source.shape) != len(x.shape):
        raise Declined("an update of or by a scalar")
    target = _updated(builder, x, (positions, source), source.shape if adds else None)
    dim %= len(target.shape)
    builder.store_at(
        target,
        View(target.buffer, tuple(source.shape), target.stride),
        lambda index: (*index[:dim], tvar(0), *index[dim + 1 :]),
        body,
        lambda index: (builder.load(positions, (index[dim],)),),
        adds=adds,
    )
    return _rounded(builder, x, target)


@lowers("aten.index_put.default", "aten.index_put_.default")
def lower_index_put(
    builder: Builder, x: Tensor, positions: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Value:
    """``x[positions] = values``, or ``+=``: negative positions count from the end."""
    given = [(d, p) for d, p in enumerate(positions) if p is not None]
    if not given or any(builder.dtype(p) not in POSITIONS for _, p in given):
        raise Declined("an update by a mask, or of everything")
    block = tuple(torch.broadcast_shapes(*(p.shape for _, p in given)))
    dims = [d for d, _ in given]
    start = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0
    others = [d for d in range(len(x.shape)) if d not in dims]
    order = {d: k for k, d in enumerate(dims)}

    def places(index: Index) -> Index:
        rest = iter((*index[:start], *index[start + len(block) :]))
        return tuple(tvar(order[d]) if d in order else next(rest) for d in range(len(x.shape)))

    def taken(index: Index) -> tuple[Expr, ...]:
        where = index[start : start + len(block)]
        return tuple(wrapped(builder.load(p, where), x.shape[d]) for d, p in given)

    def around(of: Sequence[int], middle: tuple[int, ...]) -> tuple[int, ...]:
        return (*(of[d] for d in others[:start]), *middle, *(of[d] for d in others[start:]))

    shape = around(x.shape, block)
    target = _updated(builder, x, (values, *(p for _, p in given)), shape if accumulate else None)
    steps = (min(target.stride[d] for d in dims),) * len(block)
    window = View(target.buffer, shape, around(target.stride, steps))
    builder.store_at(target, window, places, lambda index: builder.load(values, index), taken, adds=accumulate)
    return _rounded(builder, x, target)


@lowers("aten.scatter.value", "aten.scatter.src")
def lower_scatter(builder: Builder, x: Tensor, dim: int, positions: Tensor, source: Tensor | Number) -> Value:
    """``x`` with elements at positions along one dimension replaced; by choices where each row has few positions."""
    along = dim % max(1, len(x.shape))
    few = positions.shape[along] if positions.shape else 0
    rows = tuple(few if d == along else n for d, n in enumerate(x.shape))
    whole = not isinstance(source, View | Uniform) or tuple(source.shape) == rows
    chosen = not isinstance(few, Size) and 1 <= few <= MOST_CHOICES
    if not x.shape or not chosen or tuple(positions.shape) != rows or not whole:
        return _elements(builder, x, dim, positions, source, adds=False)
    dtype = compute_dtype(builder.dtype(x))

    def at(index: Index) -> Expr:
        value = cast(builder.load(x, index), dtype)
        for j in range(few):
            place = (*index[:along], sympy.Integer(j), *index[along + 1 :])
            hit = call("eq", Iota(index[along], "int64"), placed(builder.load(positions, place), x.shape[along]))
            new = builder.load(source, place) if isinstance(source, View | Uniform) else like(source, value)
            value = call("where", hit, cast(new, dtype), value)
        return value

    return builder.pointwise(at)


@lowers("aten.scatter_.src", "aten.scatter_.value")
def lower_scatter_in_place(builder: Builder, x: Tensor, dim: int, positions: Tensor, source: Tensor | Number) -> Value:
    """Elements of ``source`` written to the positions along one dimension; see ``lower_scatter`` for new tensors."""
    return _elements(builder, x, dim, positions, source, adds=False)


@lowers("aten.scatter_add.default", "aten.scatter_add_.default")
def lower_scatter_add(builder: Builder, x: Tensor, dim: int, positions: Tensor, source: Tensor) -> Value:
    """Elements of ``source`` added at the positions along one dimension."""
    return _elements(builder, x, dim, positions, source, adds=True)


def _elements(
    builder: Builder, x: Tensor, dim: int, positions: Tensor, source: Tensor | Number, *, adds: bool
) -> Value:
    if not x.shape or not positions.shape:
        raise Declined("scatter into or by a scalar")
    target = _updated(builder, x, (positions, source), positions.shape if adds else None)
    dim %= len(target.shape)

    def body(index: Index) -> Expr:
        if isinstance(source, View | Uniform):
            return builder.load(source, index)
        return const(source, builder.dtype(target))

    builder.store_at(
        target,
        View(target.buffer, tuple(positions.shape), target.stride),
        lambda index: (*index[:dim], tvar(0), *index[dim + 1 :]),
        body,
        lambda index: (builder.load(positions, index),),
        adds=adds,
    )
    return _rounded(builder, x, target)


@lowers("optfuse.sum_rows.default")
def lower_sum_rows(builder: Builder, rows: Tensor, places: Tensor, _count: int) -> Value:
    """Row v of the result is the sum of those of ``rows`` whose place is v."""
    zeros = Uniform(0, builder.spec.dtype, builder.spec.shape, builder.origin, builder.spec.device)
    return _slices(builder, zeros, 0, places, rows, lambda index: builder.load(rows, index), adds=True)


def _updated(
    builder: Builder, x: Tensor, operands: Sequence[Tensor | Number], added: Sequence[int] | None = None
) -> View:
    """The tensor that loops may update: ``x`` if the node writes it in place, else a copy of it.

    ``added``: the shape of what is added to it. Sums in a half type, from a constant on, are float32 until all terms
    are there (see ``_rounded``), unless ``_adds_in_half``.

    Raises:
        Declined: If the order of the writes matters, or other names for its memory hide who needs the new values.
    """
    if torch.are_deterministic_algorithms_enabled():
        raise Declined("torch is asked for deterministic algorithms")
    in_place = builder.node.target._schema.is_mutable  # type: ignore[union-attr]  # noqa: SLF001
    dtype = builder.dtype(x)
    if added is not None and dtype not in ADDED and not _adds_in_half(builder, x, added):
        if in_place or dtype not in HALF or not isinstance(x, Uniform) or hint(prod(added)) < hint(prod(x.shape)):
            raise Declined("sums in float32 and a copy to this type would move more bytes")
        return builder.copy(replace(x, dtype="float32"), replace(builder.spec, dtype="float32"))
    if not in_place:
        return builder.copy(x)
    if not isinstance(x, View) or builder.buffers[x.buffer].kind == "constant" or overlaps(x.shape, x.stride):
        raise Declined("it is no memory of its own")
    memory = memory_of(builder.buffers, x.buffer)
    if any(name != x.buffer and memory_of(builder.buffers, name) == memory for name in builder.buffers):
        raise Declined("its memory has another name")
    if any(isinstance(operand, View) and operand.buffer == x.buffer for operand in operands):
        raise Declined("it reads the tensor that it writes")
    return x


def _adds_in_half(builder: Builder, x: Tensor, added: Sequence[int]) -> bool:
    """Whether terms are added in memory of the half type itself, each sum rounded, as eager execution does on a GPU.

    Twice as fast as float32 and no copy, on an H200: 1.2 million rows of 256 added to 169 thousand in 0.41 ms, and in
    float32 0.83. Sums of many terms stay in float32, and those that eager execution sums so: a table's gradient.
    """
    rounds = builder.node.target in _ADDED_IN_HALF and builder.dtype(x) in HALF
    return rounds and builder.spec.device.startswith("cuda") and hint(prod(added)) <= MOST_TERMS * hint(prod(x.shape))


def _rounded(builder: Builder, x: Tensor, target: View) -> View:
    """An updated tensor in the dtype of ``x``."""
    if builder.dtype(target) == builder.dtype(x):
        return target
    return builder.pointwise(lambda index: builder.load(target, index))
