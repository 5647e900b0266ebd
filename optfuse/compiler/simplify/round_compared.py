"""Round values that are compared with one another where eager execution rounds them.

A value of a half type that passes in registers keeps the float32 in which it was computed: it is more exact than the
stored value, which is rounded. Only a comparison shows the difference. The gradient of ``amax`` asks which elements
equal the maximum that the forward graph stored: of values that were recomputed and not rounded none may, and the
gradient is divided by a count of zero. So on every path to a comparison values of a half type are rounded, no function
is approximated (``extract.approximation``), and no product is contracted with a sum of another op: a value that is
computed twice is the same both times.

The paths end at ``eq ne lt le gt ge`` of two values that vary, at positions of extrema (the first of equal ones), and
at extrema that outlive the graph, since another graph may compare them.
"""

from __future__ import annotations

from dataclasses import replace

from optfuse.compiler.ir.dtypes import HALF
from optfuse.compiler.ir.nodes import Buffer, Call, Expr, Load, LoopGraph, LoopNest, Result, Store, View
from optfuse.compiler.ir.traversal import loads, operands, stored, subexpressions

WIDE = frozenset({"float32", "float64"})
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})


def round_compared(graph: LoopGraph) -> LoopGraph:
    """The graph with values rounded on the way to a comparison.

    Stores of half types get a cast to that type, and stored products of a wider type become ``lone_mul``. In the
    example one kernel would search the largest cosine among float32 values before; after, among those that eager
    compares.

    >>> show("round_compared", lambda x: x.cos().argmax(-1), half(4, 8))
    before:
      cos: for i0 < 32  # aten.cos.default
        cos[i0] = cos(float32(tensors_0[i0]))
      argmax: for i0 < 4  # aten.argmax.default
        s0 = argmax of float32(cos[8*i0 + r0]) for r0 < 8
        argmax[i0] = s0
    after:
      cos: for i0 < 32  # aten.cos.default
        cos[i0] = bfloat16(cos(float32(tensors_0[i0])))
      argmax: for i0 < 4  # aten.argmax.default
        s0 = argmax of float32(cos[8*i0 + r0]) for r0 < 8
        argmax[i0] = s0
    """
    positions = compared(graph)
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    ops = tuple(
        _rounded(op, buffers) if k in positions and isinstance(op, LoopNest) else op for k, op in enumerate(graph.ops)
    )
    return replace(graph, ops=ops)


def compared(graph: LoopGraph) -> frozenset[int]:
    """Positions of the loop nests whose results reach, through loops alone, values that are compared."""
    dtype = {buffer.name: buffer.dtype for buffer in graph.buffers}
    lasting = {buffer.name for buffer in graph.buffers if buffer.kind != "temporary"}
    lasting |= {output.buffer for output in graph.outputs if isinstance(output, View)}
    wanted: set[str] = set()
    found: set[int] = set()
    for position in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[position]
        if not isinstance(op, LoopNest):
            continue
        leads = any(store.buffer in wanted for store in op.stores)
        extremum = any(store.buffer in lasting for store in op.stores)
        if leads:
            found.add(position)
        if leads or _compares(op, extremum=extremum):
            wanted.update(load.buffer for load in loads(op) if dtype[load.buffer] != "bool")
    return frozenset(found)


def _compares(nest: LoopNest, *, extremum: bool) -> bool:
    """Whether a nest compares two values that vary, or finds an extremum's position (or value, if ``extremum``)."""
    kinds = {reduction.kind for reduction in nest.reductions}
    if kinds & {"argmax", "argmin"} or (extremum and kinds & {"max", "min"}):
        return True
    combined = list(nest.scan.combine) if nest.scan else []
    calls = (expr for expr in subexpressions(operands(nest) + stored(nest) + combined) if isinstance(expr, Call))
    return any(call.function in _COMPARISONS and all(map(_varies, call.args)) for call in calls)


def _varies(expr: Expr) -> bool:
    """Whether an expression is a floating-point value that is loaded or reduced."""
    return expr.dtype in HALF | WIDE and any(isinstance(part, Load | Result) for part in subexpressions([expr]))


def _rounded(nest: LoopNest, buffers: dict[str, Buffer]) -> LoopNest:
    def rounded(store: Store) -> Store:
        dtype, value = buffers[store.buffer].dtype, store.value
        if dtype in HALF and value.dtype != dtype:
            return replace(store, value=Call("cast", (value,), dtype))
        if isinstance(value, Call) and value.function == "mul" and dtype in WIDE:
            return replace(store, value=replace(value, function="lone_mul"))
        return store

    return replace(nest, stores=tuple(map(rounded, nest.stores)))
