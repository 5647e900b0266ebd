"""Which ops may approximate: those whose every result is rounded to a half type before anybody sees it.

A division or an exponential that is off by two units in float32's last place is four times as fast, and after the
rounding to bfloat16 or float16 nobody can tell. What reaches a float32 output, a library or a comparison stays exact.
"""

from __future__ import annotations

from collections.abc import Iterable

from optfuse.compiler.analysis.access import accesses
from optfuse.compiler.ir.dtypes import HALF
from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph, LoopNest, View, views
from optfuse.compiler.simplify.rounding import compared


def may_approximate(graph: LoopGraph) -> frozenset[int]:
    """Positions of the loop nests of ``graph`` none of whose results is seen in more than half precision."""
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
            exact.update(_loaded(op))
    return frozenset(found)


def _rounded(stored: Iterable[str], dtype: dict[str, str], exact: set[str]) -> bool:
    """Whether each buffer is of a half type, or a float32 one that leads to such ones alone."""
    return all(dtype[name] in HALF or (dtype[name] == "float32" and name not in exact) for name in stored)


def _loaded(nest: LoopNest) -> set[str]:
    return {load.buffer for load in accesses(nest).loads}
