"""Lowering rules of ops that move elements: cat, pad, writes into slices, triangles, flip, roll, repeat, upsample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod

import sympy

from optfuse.compiler.ir.buffer_layout import row_major
from optfuse.compiler.ir.nodes import Const, Expr, Guard, Iota, View
from optfuse.compiler.ir.sizes import Size
from optfuse.compiler.lower.builder import Builder
from optfuse.compiler.lower.expressions import call, cast, compute_dtype, const, like
from optfuse.compiler.lower.registry import Declined, Uniform, Value, lowers
from optfuse.compiler.lower.strided_layout import Index

Tensor = View | Uniform


def within(position: sympy.Expr, lower: int, upper: int) -> Expr:
    """``lower <= position < upper`` as an expression."""
    at = Iota(position, "int64")
    low, high = call("ge", at, Const(lower, "int64")), call("lt", at, Const(upper, "int64"))
    return call("bitwise_and", low, high)


def guarded(builder: Builder, x: Tensor, index: Sequence[sympy.Expr], guards: tuple[Guard, ...], other: float) -> Expr:
    """An element of ``x``, or ``other`` where a guard fails and ``index`` may lie outside."""
    dtype = builder.dtype(x)
    value = Const(const(other, dtype).value, dtype)
    if 0 in x.shape:  # no index lies inside
        return cast(value, compute_dtype(dtype))
    return cast(builder.load(x, index, guards=guards, other=value if guards else None), compute_dtype(dtype))


@lowers("aten.cat.default")
def lower_cat(builder: Builder, tensors: Sequence[Tensor], dim: int = 0) -> Value:
    """The tensors concatenated along ``dim``, in their common dtype. (One of shape (0,) is ignored.)"""
    parts = [t for t in tensors if tuple(t.shape) != (0,)]
    if not parts:
        return builder.allocate(builder.spec)
    dim %= len(parts[0].shape)
    starts = [0, *accumulate(t.shape[dim] for t in parts)]
    dtype = compute_dtype(builder.spec.dtype)

    def at(index: Index) -> Expr:
        def element(k: int) -> Expr:
            position = index[dim] - starts[k]
            size = parts[k].shape[dim]
            if isinstance(parts[k], Uniform) or len(parts) == 1:
                return cast(builder.load(parts[k], index), dtype)
            source = (*index[:dim], position, *index[dim + 1 :])
            return cast(guarded(builder, parts[k], source, (Guard(position, 0, size),), 0), dtype)

        last = max(k for k, part in enumerate(parts) if part.shape[dim] != 0)
        value = element(last)
        for k in reversed(range(last)):
            if parts[k].shape[dim] != 0:
                here = call("lt", Iota(index[dim], "int64"), Const(starts[k + 1], "int64"))
                value = call("where", here, element(k), value)
        return value

    return builder.pointwise(at)


@lowers("aten.stack.default")
def lower_stack(builder: Builder, tensors: Sequence[Tensor], dim: int = 0) -> Value:
    """The tensors stacked along a new dimension."""
    dim %= len(tensors[0].shape) + 1

    def unsqueezed(t: Tensor) -> Tensor:
        shape = (*t.shape[:dim], 1, *t.shape[dim:])
        if isinstance(t, Uniform):
            return replace(t, shape=shape, constant=None)
        return replace(t, shape=shape, stride=(*t.stride[:dim], 1, *t.stride[dim:]))

    return lower_cat(builder, [unsqueezed(t) for t in tensors], dim)


@lowers("aten.constant_pad_nd.default")
def lower_pad(builder: Builder, x: Tensor, pad: Sequence[int], value: float = 0) -> Value:
    """``x`` padded with ``value``. Pads are pairs (before, after) from the last dimension on; negative ones crop."""
    rank = len(x.shape)
    before, after = [0] * rank, [0] * rank
    for k in range(len(pad) // 2):
        before[rank - 1 - k], after[rank - 1 - k] = pad[2 * k], pad[2 * k + 1]
    # by a size that changes it may be padded or cropped: then it is guarded at any size
    padded = [d for d in range(rank) if any(isinstance(n, Size) or n > 0 for n in (before[d], after[d]))]

    def at(index: Index) -> Expr:
        source = tuple(i - sympy.sympify(b) for i, b in zip(index, before, strict=True))
        guards = tuple(Guard(source[d], 0, x.shape[d]) for d in padded)
        return guarded(builder, x, source, guards, value)

    return builder.pointwise(at)


def _clamped(position: int, size: int) -> int:
    """An end of a slice of a dimension, counted from its begin and inside of it."""
    position = position + size if position < 0 else position
    return 0 if position < 0 else size if position > size else position


@lowers("aten.slice_scatter.default")
def lower_slice_scatter(
    builder: Builder,
    x: Tensor,
    source: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    """``x`` with ``source`` written over ``x[start:end:step]`` along ``dim``."""
    dim %= len(x.shape)
    first, last = (_clamped(n, x.shape[dim]) for n in (start or 0, x.shape[dim] if end is None else end))
    count = max(0, (last - first + step - 1) // step)

    def at(index: Index) -> Expr:
        past = index[dim] - first
        old = _converted(builder, x, index)
        if count == 0:
            return old
        guards = (Guard(past, 0, (count - 1) * step + 1),)
        inside = within(index[dim], first, first + (count - 1) * step + 1)
        if step > 1:
            phase = sympy.Mod(past, step)
            guards += (Guard(phase, 0, 1),)
            inside = call("bitwise_and", inside, call("eq", Iota(phase, "int64"), Const(0, "int64")))
        position = (*index[:dim], sympy.floor(past / step), *index[dim + 1 :])
        if isinstance(source, Uniform):
            return call("where", inside, cast(like(source.value, old), old.dtype), old)
        return call("where", inside, cast(guarded(builder, source, position, guards, 0), old.dtype), old)

    return builder.pointwise(at)


@lowers("aten.select_scatter.default")
def lower_select_scatter(builder: Builder, x: Tensor, source: Tensor, dim: int, position: int) -> Value:
    """``x`` with ``source`` written over one slice of ``dim``."""
    dim %= len(x.shape)
    position %= x.shape[dim]

    def at(index: Index) -> Expr:
        old = _converted(builder, x, index)
        here = call("eq", Iota(index[dim], "int64"), Const(position, "int64"))
        guard = Guard(index[dim], position, position + 1)
        rest = (*index[:dim], *index[dim + 1 :])
        if isinstance(source, Uniform):
            return call("where", here, like(source.value, old), old)
        return call("where", here, cast(guarded(builder, source, rest, (guard,), 0), old.dtype), old)

    return builder.pointwise(at)


@lowers("aten.tril.default")
def lower_tril(builder: Builder, x: Tensor, diagonal: int = 0) -> Value:
    """``x`` on and below a diagonal, zero above."""
    return _triangle(builder, x, "le", diagonal)


@lowers("aten.triu.default")
def lower_triu(builder: Builder, x: Tensor, diagonal: int = 0) -> Value:
    """``x`` on and above a diagonal, zero below."""
    return _triangle(builder, x, "ge", diagonal)


def _triangle(builder: Builder, x: Tensor, comparison: str, diagonal: int) -> Value:
    def at(index: Index) -> Expr:
        value = _converted(builder, x, index)
        above = Iota(index[-1] - index[-2], "int64")
        return call("where", call(comparison, above, Const(diagonal, "int64")), value, like(0, value))

    return builder.pointwise(at)


@lowers("aten.flip.default")
def lower_flip(builder: Builder, x: Tensor, dims: Sequence[int]) -> Value:
    """``x`` reversed along some dimensions."""
    flipped = {d % len(x.shape) for d in dims} if x.shape else set()

    def at(index: Index) -> Expr:
        return builder.load(x, [x.shape[d] - 1 - i if d in flipped else i for d, i in enumerate(index)])

    return builder.pointwise(at)


@lowers("aten.roll.default")
def lower_roll(builder: Builder, x: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] = ()) -> Value:
    """``x`` rotated along some dimensions; without ``dims``, along its flattened elements."""
    moves = [shifts] if isinstance(shifts, int) else list(shifts)
    along = [dims] if isinstance(dims, int) else list(dims)
    if 0 in x.shape:
        return builder.allocate(builder.spec)
    if not along:
        return _roll_flat(builder, x, moves[0])
    total: dict[int, int] = {}
    for move, d in zip(moves, along, strict=True):
        total[d % len(x.shape)] = total.get(d % len(x.shape), 0) + move

    def at(index: Index) -> Expr:
        source = [_rolled(i, x.shape[d], total.get(d, 0)) for d, i in enumerate(index)]
        return builder.load(x, source)

    return builder.pointwise(at)


def _rolled(index: sympy.Expr, size: int, shift: int) -> sympy.Expr:
    back = -shift % size
    return sympy.Mod(index + back, size) if back else index


def _roll_flat(builder: Builder, x: Tensor, shift: int) -> Value:
    stride = row_major(x.shape)

    def at(index: Index) -> Expr:
        flat = sympy.Add(*(i * s for i, s in zip(index, stride, strict=True)))
        source = _rolled(flat, prod(x.shape), shift)
        return builder.load(x, [sympy.Mod(sympy.floor(source / s), n) for n, s in zip(x.shape, stride, strict=True)])

    return builder.pointwise(at)


@lowers("aten.repeat.default")
def lower_repeat(builder: Builder, x: Tensor, repeats: Sequence[int]) -> Value:
    """``x`` repeated: each dimension of the output splits into (repeat, size), and ``size`` indexes ``x``."""
    if isinstance(x, Uniform):
        raise Declined("a tiled tensor of one value")
    sizes = (*(1 for _ in range(len(repeats) - len(x.shape))), *x.shape)
    return _tiled(builder, x, list(zip(repeats, sizes, strict=True)), inner=True)


@lowers("aten.upsample_nearest1d.default", "aten.upsample_nearest2d.default", "aten.upsample_nearest3d.default")
def lower_upsample_nearest(builder: Builder, x: Tensor, size: Sequence[int], *scales: float | None) -> Value:
    """Each element repeated a whole number of times along the last dimensions."""
    sources = x.shape[2:]
    if isinstance(x, Uniform) or 0 in sources or any(n % m for n, m in zip(size, sources, strict=True)):
        raise Declined("a scale that is no whole number")
    factors = [n // m for n, m in zip(size, sources, strict=True)]
    if any(given is not None and given != factor for given, factor in zip(scales, factors, strict=False)):
        raise Declined("a scale other than the sizes' own")
    pairs = [*((n, 1) for n in x.shape[:2]), *zip(sources, factors, strict=True)]
    return _tiled(builder, x, pairs, inner=False)


def _tiled(builder: Builder, x: View, pairs: Sequence[tuple[int, int]], *, inner: bool) -> Value:
    """A copy of ``x`` to an output whose dimensions split into (outer, inner), one of which indexes ``x``."""
    out = builder.allocate(builder.spec)
    split = View(
        out.buffer,
        tuple(n for pair in pairs for n in pair),
        tuple(s for (_, low), stride in zip(pairs, out.stride, strict=True) for s in (stride * low, stride)),
        out.offset,
    )
    builder.store_into(split, lambda index: builder.load(x, index[1::2] if inner else index[::2]), name=out.buffer)
    return out


def _converted(builder: Builder, x: Tensor, index: Index) -> Expr:
    """An element in the computation dtype of the node."""
    return cast(builder.load(x, index), compute_dtype(builder.spec.dtype))
