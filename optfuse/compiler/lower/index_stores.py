"""Lowering rules of updates in place at positions that other tensors hold: rows of a cache, for example.

Where a position occurs twice, each element gets one of the values given for it, and which one is not defined: so it is
in ATen, too, unless torch is asked to be deterministic. Then the update is a library call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from optfuse.compiler.ir.nodes import Expr, View, memory_of, tvar
from optfuse.compiler.lower.builder import Builder
from optfuse.compiler.lower.gather_scatter import POSITIONS, wrapped
from optfuse.compiler.lower.registry import Declined, Uniform, Value, lowers
from optfuse.compiler.lower.strided_layout import Index, overlaps

Tensor = View | Uniform


@lowers("aten.index_copy_.default")
def lower_index_copy_in_place(builder: Builder, x: Tensor, dim: int, positions: Tensor, source: Tensor) -> Value:
    """Slices of ``source`` written over those of ``x`` at some positions of one dimension."""
    target = _updated(builder, x, (positions, source))
    if not target.shape or len(positions.shape) != 1 or len(source.shape) != len(target.shape):
        raise Declined("an update of or by a scalar")
    dim %= len(target.shape)
    builder.store_at(
        target,
        View(target.buffer, tuple(source.shape), target.stride),
        lambda index: (*index[:dim], tvar(0), *index[dim + 1 :]),
        lambda index: builder.load(source, index),
        lambda index: (builder.load(positions, (index[dim],)),),
    )
    return target


@lowers("aten.index_put_.default")
def lower_index_put_in_place(
    builder: Builder, x: Tensor, positions: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Value:
    """``x[positions] = values``: negative positions count from the end."""
    given = [(d, p) for d, p in enumerate(positions) if p is not None]
    target = _updated(builder, x, (values, *(p for _, p in given)))
    if accumulate or not given or any(builder.dtype(p) not in POSITIONS for _, p in given):
        raise Declined("an update that adds, or by a mask")
    block = tuple(torch.broadcast_shapes(*(p.shape for _, p in given)))
    dims = [d for d, _ in given]
    start = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0
    others = [d for d in range(len(target.shape)) if d not in dims]
    order = {d: k for k, d in enumerate(dims)}

    def places(index: Index) -> Index:
        rest = iter((*index[:start], *index[start + len(block) :]))
        return tuple(tvar(order[d]) if d in order else next(rest) for d in range(len(target.shape)))

    def taken(index: Index) -> tuple[Expr, ...]:
        where = index[start : start + len(block)]
        return tuple(wrapped(builder.load(p, where), target.shape[d]) for d, p in given)

    def around(of: Sequence[int], middle: tuple[int, ...]) -> tuple[int, ...]:
        return (*(of[d] for d in others[:start]), *middle, *(of[d] for d in others[start:]))

    steps = (min(target.stride[d] for d in dims),) * len(block)
    window = View(target.buffer, around(target.shape, block), around(target.stride, steps))
    builder.store_at(target, window, places, lambda index: builder.load(values, index), taken)
    return target


def _updated(builder: Builder, x: Tensor, operands: Sequence[Any]) -> View:
    """The tensor that loops may update in place.

    Raises:
        Declined: If the order of the writes matters, or other names for its memory hide who needs the new values.
    """
    if torch.are_deterministic_algorithms_enabled():
        raise Declined("torch is asked for deterministic algorithms")
    if not isinstance(x, View) or builder.buffers[x.buffer].kind == "constant" or overlaps(x.shape, x.stride):
        raise Declined("it is no memory of its own")
    memory = memory_of(builder.buffers, x.buffer)
    if any(name != x.buffer and memory_of(builder.buffers, name) == memory for name in builder.buffers):
        raise Declined("its memory has another name")
    if any(isinstance(operand, View) and operand.buffer == x.buffer for operand in operands):
        raise Declined("it reads the tensor that it writes")
    return x
