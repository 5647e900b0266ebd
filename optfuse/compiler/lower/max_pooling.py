"""Max pooling and its gradient as loops: an output reads the inputs of its window, an input's gradient its windows'.

ATen's own kernels store positions as int64 and take four to five times as long as a copy of their operands. Here the
positions for the backward are stored as offsets in the window, in a byte (``optfuse.max_pool``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, prod

import sympy

from optfuse.compiler.ir.nodes import Const, Expr, Iota, LoopNest, Store, View
from optfuse.compiler.lower.builder import Builder, Spec
from optfuse.compiler.lower.collapse import collapse
from optfuse.compiler.lower.expressions import call, cast, const
from optfuse.compiler.lower.movement import guarded
from optfuse.compiler.lower.registry import Declined, Uniform, Value, lowers
from optfuse.compiler.lower.strided_layout import Index, loop_variables, memory_order, strided_index
from optfuse.compiler.lower.windows import Windows, floating, holding, image, pooled_dimensions, row_major_offset

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


@lowers("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default")
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
    windows, specs = Windows.of(pooled_dimensions(builder), kernel, stride, padding, dilation), builder.specs
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
    at = [
        call(
            "add",
            Iota(windows.start(index, d), "int64"),
            call("mul", cast(step, "int64"), const(windows.dilation[d], "int64")),
        )
        for d, step in enumerate(_steps(offset, windows.kernel))
    ]
    flat = row_major_offset(at, x.shape[-windows.rank :])
    _emit(builder, [(out, best), (positions, flat)], index, sizes)
    return out, positions


def _steps(offset: Expr, kernel: tuple[int, ...]) -> list[Expr]:
    """How far the element at a row-major offset lies from the window's first one, along each dimension."""
    steps: list[Expr] = []
    for d, size in enumerate(kernel):
        inner = kernel[d + 1 :]
        step = call("floordiv", offset, const(prod(inner), "int32")) if inner else offset
        steps.append(call("remainder", step, const(size, "int32")) if d else step)
    return steps


@lowers("optfuse.max_pool.default")
def lower_max_pool_offsets(
    builder: Builder, x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], _ceil: bool
) -> Value:
    """The largest element of each window, and its offset in the window."""
    floating(builder, x)
    windows = Windows.of(len(kernel), kernel, stride, padding)
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
    windows = Windows.of(len(kernel), kernel, stride, padding)

    def wanted(_: Index, within: Index) -> Expr:
        return Iota(_flat(within, windows.kernel), "int32")

    return _gathered(builder, grad, offsets, windows, "int32", wanted)


@lowers("aten.max_pool2d_with_indices_backward.default", "aten.max_pool3d_with_indices_backward.default")
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
    windows = Windows.of(pooled_dimensions(builder), kernel, stride, padding, dilation)
    if max(windows.dilation) > 1:
        raise Declined("windows with gaps")
    sizes = x.shape[-windows.rank :]

    def wanted(index: Index, _: Index) -> Expr:
        return Iota(_flat(index[-windows.rank :], sizes), "int64")

    return _gathered(builder, grad, positions, windows, "int64", wanted)


def _flat(position: Index, sizes: tuple[int, ...]) -> sympy.Expr:
    """The row-major offset of a position in a box of ``sizes``."""
    return sympy.Add(*(at * prod(sizes[d + 1 :]) for d, at in enumerate(position)))


def _gathered(
    builder: Builder,
    grad: Tensor,
    kept: Tensor,
    windows: Windows,
    dtype: str,
    wanted: Callable[[Index, Index], Expr],
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
