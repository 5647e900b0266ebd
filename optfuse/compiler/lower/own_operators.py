"""Operators of our own (``optfuse.compiler.ops``) as loops.

Space to depth and back, groups of another width or one after another, batch norm folded into weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from optfuse.compiler.ir.nodes import Expr, Guard, View
from optfuse.compiler.lower.builder import Builder
from optfuse.compiler.lower.expressions import call, cast, like
from optfuse.compiler.lower.movement import guarded
from optfuse.compiler.lower.registry import Uniform, Value, lowers
from optfuse.compiler.lower.strided_layout import Index

Tensor = View | Uniform


@lowers("optfuse.to_depth.default")
def lower_to_depth(builder: Builder, x: Tensor, before: Sequence[int], _blocks: Sequence[int], _channels: int) -> Value:
    """Each channel of a block is a pixel of the image, or 0."""

    def at(index: Index) -> Expr:
        channel = index[1]
        row = 2 * index[2] + sympy.Mod(sympy.floor(channel / 2), 2) - before[0]
        column = 2 * index[3] + sympy.Mod(channel, 2) - before[1]
        guards = (Guard(channel, 0, 4 * x.shape[1]), Guard(row, 0, x.shape[2]), Guard(column, 0, x.shape[3]))
        return guarded(builder, x, (index[0], sympy.floor(channel / 4), row, column), guards, 0)

    return builder.pointwise(at)


@lowers("optfuse.from_depth.default")
def lower_from_depth(builder: Builder, x: Tensor, before: Sequence[int], _size: Sequence[int]) -> Value:
    """Each pixel is a channel of a block."""

    def at(index: Index) -> Expr:
        row, column = (index[2 + d] + before[d] for d in (0, 1))
        channel = 4 * index[1] + 2 * sympy.Mod(row, 2) + sympy.Mod(column, 2)
        return guarded(builder, x, (index[0], channel, sympy.floor(row / 2), sympy.floor(column / 2)), (), 0)

    return builder.pointwise(at)


@lowers("optfuse.resize_groups.default")
def lower_resize_groups(builder: Builder, x: Tensor, dim: int, groups: int, width: int) -> Value:
    """Each channel of a group is the group's channel of the same number, or 0."""
    old = x.shape[dim] // groups

    def at(index: Index) -> Expr:
        group, channel = sympy.floor(index[dim] / width), sympy.Mod(index[dim], width)
        source = (*index[:dim], old * group + channel, *index[dim + 1 :])
        return guarded(builder, x, source, (Guard(channel, 0, old),) if width > old else (), 0)

    return builder.pointwise(at)


@lowers("optfuse.stack_groups.default")
def lower_stack_groups(builder: Builder, x: Tensor, groups: int) -> Value:
    """Each group's channels."""
    width = x.shape[1] // groups
    return builder.pointwise(
        lambda index: guarded(builder, x, (index[1], width * index[0] + index[2], *index[3:]), (), 0)
    )


def _scale(builder: Builder, weight: Tensor | None, variance: Tensor, eps: float, channel: Index) -> Expr:
    spread = cast(builder.load(variance, channel), "float32")
    scale = call("rsqrt", call("add", spread, like(eps, spread)))
    return scale if weight is None else call("mul", scale, cast(builder.load(weight, channel), "float32"))


@lowers("optfuse.norm_weight.default")
def lower_norm_weight(builder: Builder, kernel: Tensor, weight: Tensor | None, variance: Tensor, eps: float) -> Value:
    """The weights times each channel's scale."""

    def at(index: Index) -> Expr:
        return call(
            "mul", cast(builder.load(kernel, index), "float32"), _scale(builder, weight, variance, eps, index[:1])
        )

    return builder.pointwise(at)


@lowers("optfuse.norm_shift.default")
def lower_norm_shift(
    builder: Builder,
    _kernel: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    eps: float,
    inner: Tensor | None,
    beside: Tensor | None,
) -> Value:
    """The bias of a convolution with batch norm folded in, plus ``beside``."""

    def at(index: Index) -> Expr:
        average = cast(builder.load(mean, index), "float32")
        own = like(0, average) if inner is None else cast(builder.load(inner, index), "float32")
        value = call("mul", call("sub", own, average), _scale(builder, weight, variance, eps, index))
        for part in (bias, beside):
            value = value if part is None else call("add", value, cast(builder.load(part, index), "float32"))
        return value

    return builder.pointwise(at)
