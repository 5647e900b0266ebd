"""Values that are compared with one another are rounded where eager execution rounds them.

A value of a half type that a kernel hands on in registers keeps the float32 that it was computed in: it is nearer to
the truth than what is stored, and whoever reads the stored one is off by a rounding. Only a comparison can tell. The
gradient of ``amax`` asks which elements equal the largest, which the forward graph has stored: beside values that were
computed again and not rounded there is none, and the gradient is divided by zero of them. So on the way to a comparison
every value of a half type is rounded, nothing is approximated (``precision.py``), and no product and sum of two ops are
rounded as one: computed twice, it is the same twice.

Ways to a comparison start at ``eq ne lt le gt ge`` of two values that vary, at positions of extrema (the first of those
that are equal), and at extrema that outlast the graph, since another graph may compare them.
"""

from __future__ import annotations

from dataclasses import replace

from optfuse.compiler.analysis.access import accesses, roots, walk
from optfuse.compiler.ir.dtypes import HALF
from optfuse.compiler.ir.nodes import Buffer, Call, Expr, Load, LoopGraph, LoopNest, Result, Store, View

WIDE = frozenset({"float32", "float64"})
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})


def round_compared(graph: LoopGraph) -> LoopGraph:
    """The graph with values rounded on the way to a comparison.

    Stores of half types have a cast to that type before them, and products that are stored in a wider type stand alone.

    Before, the largest cosine is looked for among float32 values where one kernel does both; after, among those that
    eager execution compares.

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
    """Positions of the loop nests whose results lead, through loops alone, to values that are compared."""
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
        largest = any(store.buffer in lasting for store in op.stores)
        if leads:
            found.add(position)
        if leads or _compares(op, largest=largest):
            wanted.update(load.buffer for load in accesses(op).loads if dtype[load.buffer] != "bool")
    return frozenset(found)


def _compares(nest: LoopNest, *, largest: bool) -> bool:
    """Whether a nest compares two values that vary, or asks which is the largest (``largest``: or what it is)."""
    kinds = {reduction.kind for reduction in nest.reductions}
    if kinds & {"argmax", "argmin"} or (largest and kinds & {"max", "min"}):
        return True
    calls = (expr for root in roots(nest) for expr in walk(root) if isinstance(expr, Call))
    return any(call.function in _COMPARISONS and all(map(_varies, call.args)) for call in calls)


def _varies(expr: Expr) -> bool:
    """Whether a floating-point value is read, or reduced from what is."""
    return expr.dtype in HALF | WIDE and any(isinstance(part, Load | Result) for part in walk(expr))


def _rounded(nest: LoopNest, buffers: dict[str, Buffer]) -> LoopNest:
    def rounded(store: Store) -> Store:
        dtype, value = buffers[store.buffer].dtype, store.value
        if dtype in HALF and value.dtype != dtype:
            return replace(store, value=Call("cast", (value,), dtype))
        if isinstance(value, Call) and value.function == "mul" and dtype in WIDE:
            return replace(store, value=replace(value, function="lone_mul"))
        return store

    return replace(nest, stores=tuple(map(rounded, nest.stores)))
