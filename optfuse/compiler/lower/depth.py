"""Two by two pixels as channels, and back (``optfuse.compiler.ops.depth``): a nest each."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from optfuse.compiler.ir.nodes import Expr, Guard, View
from optfuse.compiler.lower.builder import Builder
from optfuse.compiler.lower.layout import Index
from optfuse.compiler.lower.movement import guarded
from optfuse.compiler.lower.registry import Uniform, Value, lowers

Tensor = View | Uniform


@lowers("optfuse.to_depth.default")
def lower_to_depth(builder: Builder, x: Tensor, before: Sequence[int], _blocks: Sequence[int], _channels: int) -> Value:
    """The pixel of each channel of a block, where there is one."""

    def at(index: Index) -> Expr:
        channel = sympy.sympify(index[1])
        row = 2 * index[2] + sympy.Mod(sympy.floor(channel / 2), 2) - before[0]
        column = 2 * index[3] + sympy.Mod(channel, 2) - before[1]
        guards = (
            Guard(channel, 0, 4 * int(x.shape[1])),
            Guard(sympy.sympify(row), 0, x.shape[2]),
            Guard(sympy.sympify(column), 0, x.shape[3]),
        )
        return guarded(builder, x, (index[0], sympy.floor(channel / 4), row, column), guards, 0)

    return builder.pointwise(at)


@lowers("optfuse.from_depth.default")
def lower_from_depth(builder: Builder, x: Tensor, before: Sequence[int], _size: Sequence[int]) -> Value:
    """The channel of a block that is each pixel."""

    def at(index: Index) -> Expr:
        row, column = (sympy.sympify(index[2 + d] + before[d]) for d in (0, 1))
        channel = 4 * index[1] + 2 * sympy.Mod(row, 2) + sympy.Mod(column, 2)
        return guarded(builder, x, (index[0], channel, sympy.floor(row / 2), sympy.floor(column / 2)), (), 0)

    return builder.pointwise(at)
