"""Max pooling and its gradient as loops: an output reads the inputs of its window, an input's gradient its windows'.

ATen's own kernels store positions as int64 and take four to five times as long as a copy of their operands. Here the
positions for the backward are stored as offsets in the window, in a byte (``optfuse.max_pool``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import sympy

from optfuse.compiler.ir.nodes import Const, Expr, Iota, LoopNest, Store, View
from optfuse.compiler.lower.builder import Builder, Spec
from optfuse.compiler.lower.collapse import collapse
from optfuse.compiler.lower.expressions import call, cast, const
from optfuse.compiler.lower.movement import guarded
from optfuse.compiler.lower.registry import Declined, Uniform, Value, lowers
from optfuse.compiler.lower.strided_layout import Index, loop_variables, memory_order, strided_index
from optfuse.compiler.lower.windows import Windows, floating, holding, image

Tensor = View | Uniform


def _largest(builder: Builder, x: Tensor, windows: Windows, index: Index, *, where: bool) -> tuple[Expr, Expr]:
    """The largest element of a window and its offset in it: the last nan if there is one, else the first maximum."""
    best: Expr | None = None
    offset = windows.first(index) if where else const(0, "int32")
    for k, position in windows.elements(index):
        value = guarded(builder, x, *image(x, index, position), -inf)
        if where:  # each comparison holds one copy of the maximum so far: expressions are trees
            least = const(-inf, value.dtype) if best is None else best
            better = call("bitwise_or", call("gt", value, least), call("isnan", value))
            offset = call("where", better, const(k, "int32"), offset)
        best = value if best is None else call("maximum", best, value)
    assert best is not None, "a window has elements"
    return best, offset


def _emit(builder: Builder, bodies: Sequence[tuple[View, Expr]], index: Index, sizes: tuple[int, ...]) -> None:
    stores = tuple(
        Store(out.buffer, strided_index(out.shape, out.stride, out.offset, index), value) for out, value in bodies
    )
    builder.emit(collapse(LoopNest(builder.node.name, sizes, (), (), stores, builder.origin)))


def _walked(spec: Spec) -> tuple[Index, tuple[int, ...]]:
    index, sizes, _ = loop_variables(spec.shape, memory_order(range(len(spec.shape)), spec.stride))
    return index, sizes


@lowers("aten.max_pool2d_with_indices.default")
def lower_max_pool(
    builder: Builder,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    _ceil: bool = False,
) -> Value:
    """The largest element of each window, and its position in the image if that is used."""
    floating(builder, x)
    windows, specs = Windows.of(kernel, stride, padding, dilation), builder.specs
    asked = any(user.args[1] == 1 and user.users for user in builder.node.users)
    if 0 in specs[0].shape:
        raise Declined("an empty result")
    index, sizes = _walked(specs[0])
    best, offset = _largest(builder, x, windows, index, where=asked)
    out = builder.allocate(specs[0], name=f"{builder.node.name}_0")
    if not asked:
        _emit(builder, [(out, best)], index, sizes)
        return (out, None)
    positions = builder.allocate(specs[1], name=f"{builder.node.name}_1")
    columns = const(windows.kernel[1], "int32")
    row, column = call("floordiv", offset, columns), call("remainder", offset, columns)
    at = [
        call(
            "add",
            Iota(index[d - 2] * windows.stride[d] - windows.padding[d], "int64"),
            call("mul", cast(step, "int64"), const(windows.dilation[d], "int64")),
        )
        for d, step in ((0, row), (1, column))
    ]
    flat = call("add", call("mul", at[0], const(x.shape[-1], "int64")), at[1])
    _emit(builder, [(out, best), (positions, flat)], index, sizes)
    return out, positions


@lowers("optfuse.max_pool.default")
def lower_max_pool_offsets(
    builder: Builder, x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], _ceil: bool
) -> Value:
    """The largest element of each window, and its offset in the window."""
    floating(builder, x)
    windows = Windows.of(kernel, stride, padding)
    specs = builder.specs
    if 0 in specs[0].shape:
        raise Declined("an empty result")
    index, sizes = _walked(specs[0])
    best, offset = _largest(builder, x, windows, index, where=True)
    outs = builder.allocate_outputs(specs)
    _emit(builder, [(outs[0], best), (outs[1], cast(offset, "int8"))], index, sizes)
    return outs


@lowers("optfuse.max_pool_backward.default")
def lower_max_pool_offsets_backward(
    builder: Builder,
    grad: Tensor,
    _x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    _ceil: bool,
    offsets: View,
) -> Value:
    """At each element: the sum of the gradients of the windows whose stored offset is that of this element."""
    floating(builder, grad)
    windows = Windows.of(kernel, stride, padding)

    def wanted(_: Index, within: tuple[sympy.Expr, sympy.Expr]) -> Expr:
        return Iota(within[0] * windows.kernel[1] + within[1], "int32")

    return _gathered(builder, grad, offsets, windows, "int32", wanted)


@lowers("aten.max_pool2d_with_indices_backward.default")
def lower_max_pool_backward(
    builder: Builder,
    grad: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    _ceil: bool,
    positions: View,
) -> Value:
    """At each element: the sum of the gradients of the windows whose stored position is that of this element."""
    floating(builder, grad)
    windows = Windows.of(kernel, stride, padding, dilation)
    if windows.dilation != (1, 1):
        raise Declined("windows with gaps")
    columns = x.shape[-1]

    def wanted(index: Index, _: tuple[sympy.Expr, sympy.Expr]) -> Expr:
        return Iota(index[-2] * columns + index[-1], "int64")

    return _gathered(builder, grad, positions, windows, "int64", wanted)


def _gathered(
    builder: Builder,
    grad: Tensor,
    kept: Tensor,
    windows: Windows,
    dtype: str,
    wanted: Callable[[Index, tuple[sympy.Expr, sympy.Expr]], Expr],
) -> Value:
    """At each element: the sum of ``grad`` over the windows that hold it and whose ``kept`` equals ``wanted``."""

    def at(index: Index) -> Expr:
        total: Expr | None = None
        for held in holding(grad, windows, index):
            value = guarded(builder, grad, held.where, held.guards, 0)
            other = Const(-1, builder.dtype(kept))
            mark = cast(builder.load(kept, held.where, guards=held.guards, other=other), dtype)
            part = call("where", call("eq", mark, wanted(index, held.within)), value, const(0, value.dtype))
            total = part if total is None else call("add", total, part)
        assert total is not None, "an element is looked for in at least one window"
        return total

    return builder.pointwise(at)
