"""Which ops may use approximate functions: those whose results are all rounded to a half type.

A division or an exponential with an error of two units in float32's last place is four times as fast, and the rounding
to bfloat16 or float16 hides the error. Values that reach a float32 output, a library or a comparison stay exact.
"""

from __future__ import annotations

from collections.abc import Iterable

from optfuse.compiler.ir.dtypes import HALF
from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph, View, views
from optfuse.compiler.ir.traversal import loads
from optfuse.compiler.simplify.round_compared import compared


def may_approximate(graph: LoopGraph) -> frozenset[int]:
    """Positions of the loop nests of ``graph`` whose results are used in half precision only."""
    dtype = {buffer.name: buffer.dtype for buffer in graph.buffers}
    lasting = {buffer.name for buffer in graph.buffers if buffer.kind != "temporary"}
    exact = lasting | {output.buffer for output in graph.outputs if isinstance(output, View)}
    same = compared(graph)
    found: set[int] = set()
    for position in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[position]
        if isinstance(op, LibraryCall):
            exact.update(view.buffer for view in views(op))
        elif position not in same and _rounded((store.buffer for store in op.stores), dtype, exact):
            found.add(position)
        else:
            exact.update(load.buffer for load in loads(op))
    return frozenset(found)


def _rounded(stored: Iterable[str], dtype: dict[str, str], exact: set[str]) -> bool:
    """Whether each buffer is of a half type, or a float32 temporary whose consumers all round to one."""
    return all(dtype[name] in HALF or (dtype[name] == "float32" and name not in exact) for name in stored)
