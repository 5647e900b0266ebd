"""Lower ``associative_scan`` with a combine function that is arithmetic on single elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import sympy
from torch.fx import GraphModule

from optfuse.compiler.ir.dtypes import NARROW
from optfuse.compiler.ir.nodes import Call, Const, Dot, Expr, Iota, Load, LoopGraph, LoopNest, Result, View
from optfuse.compiler.lower.builder import Builder
from optfuse.compiler.lower.expressions import cast, compute_dtype
from optfuse.compiler.lower.registry import Declined, Uniform
from optfuse.compiler.lower.scans import emit_scan, held_in
from optfuse.compiler.lower.strided_layout import Index
from optfuse.compiler.ops.opaque_operators import AssociativeScan
from optfuse.errors import CaptureError


def lower_associative_scan(
    builder: Builder,
    scan: AssociativeScan,
    lower: Callable[[GraphModule], LoopGraph],
    tensors: Sequence[View | Uniform],
) -> View | tuple[View, ...]:
    """Emit the scan. ``lower`` gives the loop graph of the combine function.

    Raises:
        Declined: If the combine function is more than arithmetic on single elements, or few rows are long.
    """
    given = [tensors[k] for k in scan.operands]
    held = [held_in(builder.dtype(x)) for x in given]
    if len({x.shape for x in given}) != 1:
        raise Declined("operands of several shapes")

    def operands(index: Index, _position: sympy.Expr) -> tuple[Expr, ...]:
        return tuple(cast(builder.load(x, index), dtype) for x, dtype in zip(given, held, strict=True))

    traced = (node for node in scan.combine.graph.nodes if node.op in ("placeholder", "call_function"))
    if not all("val" in node.meta for node in traced):
        raise Declined("a combine function whose nodes have no values")
    try:
        combine = combination(lower(scan.combine), held)
    except CaptureError as error:
        raise Declined(str(error)) from error
    outs = emit_scan(builder, given[0].shape, 0, operands, combine, scan.kept)
    return outs[0] if len(outs) == 1 else outs


def combination(combine: LoopGraph, held: Sequence[str]) -> tuple[Expr, ...]:
    """The results of a combine function as expressions of a scan's ``combine``, whose operands have dtypes ``held``.

    Raises:
        Declined: If an element of a result depends on other elements, on positions, or on other tensors.
    """
    taken = zip(combine.inputs, (*held, *held), strict=True)
    known: dict[str, Expr] = {name: Result(k, dtype) for k, (name, dtype) in enumerate(taken)}
    for op in combine.ops:
        if not isinstance(op, LoopNest) or not op.pointwise:
            raise Declined("a combine function that is not pointwise")
        for store in op.stores:
            value = _element(store.value, store.index, known)
            known[store.buffer] = cast(value, compute_dtype(value.dtype))
    results = [known.get(out.buffer) if isinstance(out, View) else None for out in combine.outputs]
    found = [cast(value, dtype) for value, dtype in zip(results, held, strict=True) if value is not None]
    if len(found) != len(held):
        raise Declined("a combine function that returns other values than tensors")
    return tuple(found)


def _element(expr: Expr, index: sympy.Expr, known: Mapping[str, Expr]) -> Expr:
    """An expression of a pointwise nest with the values of its loads, all of which are at ``index``."""
    match expr:
        case Const():
            return expr
        case Load() if expr.buffer in known and expr.index == index and not expr.guards and not expr.indirect:
            value = known[expr.buffer]
            return value if expr.dtype in NARROW else cast(value, expr.dtype)
        case Call("cast", (arg,), dtype):
            return cast(_element(arg, index, known), dtype)
        case Call():
            return Call(expr.function, tuple(_element(arg, index, known) for arg in expr.args), expr.dtype)
        case Load() | Iota() | Result() | Dot():
            raise Declined("a combine function of more than its arguments' elements")
