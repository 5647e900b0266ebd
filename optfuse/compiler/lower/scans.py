"""Lowering rules of scans: running sums, products, extrema with their positions, and logarithms of sums.

Half types accumulate in float32 and small integers in int32, as reductions do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import sympy

from optfuse.compiler.ir.dtypes import FLOATING
from optfuse.compiler.ir.nodes import Expr, Iota, LoopNest, Result, Scan, Store, View, rvar
from optfuse.compiler.ir.sizes import hint
from optfuse.compiler.lower.builder import Builder
from optfuse.compiler.lower.collapse import collapse
from optfuse.compiler.lower.expressions import call, cast, compute_dtype
from optfuse.compiler.lower.registry import Declined, Uniform, Value, lowers
from optfuse.compiler.lower.strided_layout import Index, loop_variables, memory_order, strided_index

Tensor = View | Uniform

#: The longest row that one program scans although there may be few rows.
LONGEST_ROW = 8192
#: Rows that keep a device busy: longer ones are scanned by one program each if there are as many.
MANY_ROWS = 256
_SMALL = frozenset({"bool", "uint8", "int8", "int16"})


def held_in(dtype: str) -> str:
    """The dtype in which elements of ``dtype`` are scanned. Raises Declined if there is none."""
    if dtype in _SMALL:
        return "int32"
    if dtype in FLOATING:
        return "float64" if dtype == "float64" else "float32"
    if dtype not in ("int32", "int64"):
        raise Declined(f"a scan in {dtype}")
    return dtype


def emit_scan(
    builder: Builder,
    shape: Sequence[int],
    dim: int,
    operands: Callable[[Index, sympy.Expr], tuple[Expr, ...]],
    combine: tuple[Expr, ...],
    kept: Sequence[int] | None = None,
) -> tuple[View, ...]:
    """Emit the node's scan of tensors of ``shape`` along ``dim``, and return its outputs.

    ``operands`` gives the scan's operands at an index and the position in it along ``dim``. The outputs are what the
    scan has for each operand, or for those in ``kept``. A scan of one element is a pointwise nest.
    """
    dim = dim % len(shape) if shape else 0
    row = shape[dim] if shape else 1
    if hint(row) > LONGEST_ROW and hint(prod(shape)) < MANY_ROWS * hint(row):
        raise Declined(f"{prod(shape) // row} rows of {row} elements, each of which one program would scan")
    builder.require_loops(builder.specs[0].device)
    outs = builder.allocate_outputs(builder.specs)
    if 0 in shape:
        return outs
    order = memory_order(range(len(shape)), outs[0].stride)
    index, sizes, rsizes = loop_variables(shape, [d for d in order if d != dim], [dim] if shape else [])
    found = operands(index, rvar(0) if rsizes else sympy.S.Zero)
    values = [Result(k, operand.dtype) for k, operand in enumerate(found)] if rsizes else found
    stores = tuple(
        Store(
            out.buffer,
            strided_index(out.shape, out.stride, out.offset, index),
            cast(values[k], compute_dtype(builder.buffers[out.buffer].dtype)),
        )
        for out, k in zip(outs, range(len(found)) if kept is None else kept, strict=True)
    )
    scan = Scan(found, combine) if rsizes else None
    builder.emit(collapse(LoopNest(builder.node.name, sizes, rsizes, (), stores, builder.origin, scan)))
    return outs


def of_two(function: str, dtype: str) -> tuple[Expr, ...]:
    """The combination of one operand by a scalar function."""
    return (call(function, Result(0, dtype), Result(1, dtype)),)


def _register_fold(name: str, function: str) -> None:
    @lowers(f"aten.{name}.default")
    def lower(builder: Builder, x: Tensor, dim: int, *, dtype: Any = None) -> Value:
        """Each element folded with all before it. The output's dtype, given by ``dtype``, is the accumulation dtype."""
        if builder.spec.dtype == "bool":
            raise Declined("a running sum or product in bool")
        held = held_in(builder.spec.dtype)

        def operands(index: Index, _position: sympy.Expr) -> tuple[Expr, ...]:
            return (cast(cast(builder.load(x, index), compute_dtype(builder.spec.dtype)), held),)

        (out,) = emit_scan(builder, x.shape, dim, operands, of_two(function, held))
        return out


_register_fold("cumsum", "add")
_register_fold("cumprod", "mul")


def _register_extremum(name: str, comparison: str) -> None:
    @lowers(f"aten.{name}.default")
    def lower(builder: Builder, x: Tensor, dim: int) -> Value:
        """The extremum of each element and all before it, and its position: the last one among equals, and nan wins."""
        held = held_in(builder.dtype(x))
        before, at, new, here = Result(0, held), Result(1, "int32"), Result(2, held), Result(3, "int32")
        wins = call(comparison, new, before)
        if held in FLOATING:
            wins = call("bitwise_or", wins, call("isnan", new))

        def operands(index: Index, position: sympy.Expr) -> tuple[Expr, ...]:
            return cast(builder.load(x, index), held), Iota(position, "int32")

        chosen = (call("where", wins, new, before), call("where", wins, here, at))
        return emit_scan(builder, x.shape, dim, operands, chosen)


_register_extremum("cummax", "ge")
_register_extremum("cummin", "le")


@lowers("aten.logcumsumexp.default")
def lower_logcumsumexp(builder: Builder, x: Tensor, dim: int) -> Value:
    """The logarithm of the sum of the exponentials of each element and all before it."""
    if builder.dtype(x) not in FLOATING:
        raise Declined(f"a logarithm of sums in {builder.dtype(x)}")
    held = held_in(builder.dtype(x))
    (larger,), (smaller,) = of_two("maximum", held), of_two("minimum", held)
    total = call("add", call("log1p", call("exp", call("sub", smaller, larger))), larger)
    both = call("where", call("isinf", larger), larger, total)  # inf - inf is nan
    (out,) = emit_scan(builder, x.shape, dim, lambda index, _: (cast(builder.load(x, index), held),), (both,))
    return out
