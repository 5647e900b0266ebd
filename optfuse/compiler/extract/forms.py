"""Number the forms of ops: those of one number hold the same operations, up to sizes, buffers and constants."""

from __future__ import annotations

from optfuse.compiler.ir.nodes import Call, Expr, LoopGraph, LoopNest
from optfuse.compiler.ir.traversal import operands, stored, subexpressions


def op_forms(graph: LoopGraph) -> tuple[int, ...]:
    """By op, the number of its form, from 1; 0 for library calls and for nests without a form like theirs."""
    dtypes = {buffer.name: buffer.dtype for buffer in graph.buffers}
    keys = [_form(op, dtypes) if isinstance(op, LoopNest) else None for op in graph.ops]
    count: dict[object, int] = {}
    for key in keys:
        count[key] = count.get(key, 0) + 1
    several = [key for key in count if key is not None and count[key] > 1]
    numbers = {key: number for number, key in enumerate(several, 1)}
    return tuple(numbers.get(key, 0) for key in keys)


def _form(nest: LoopNest, dtypes: dict[str, str]) -> tuple[object, ...]:
    folded = tuple(reduction.kind for reduction in nest.reductions)
    stores = tuple((dtypes[store.buffer], store.adds, bool(store.indirect)) for store in nest.stores)
    scanned = None if nest.scan is None else len(nest.scan.operands)
    parts = tuple(sorted({_part(expr) for expr in subexpressions(operands(nest) + stored(nest))}))  # shared or not
    return folded, scanned, stores, parts


def _part(expr: Expr) -> tuple[str, str]:
    return (expr.function if isinstance(expr, Call) else type(expr).__name__, expr.dtype)
