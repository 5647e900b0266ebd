"""A subset of a graph's ops as a graph of its own, such as the ops of one kernel."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from optfuse.compiler.ir.nodes import LoopGraph, LoopNest, Op, View, views
from optfuse.compiler.ir.traversal import loads


def subgraph(graph: LoopGraph, ops: Collection[int], given: Sequence[str], results: Sequence[str]) -> LoopGraph:
    """The graph of the ops at some positions, in the original order, over the buffers ``given``.

    The new graph's inputs are those of ``given`` that the ops touch, in that order, constants among them. Its outputs
    are the whole buffers ``results``; one that is given as well keeps the elements that no op writes.
    """
    chosen = tuple(graph.ops[k] for k in sorted(ops))
    names = {name for op in chosen for name in buffers_of(op)}
    inputs = tuple(name for name in given if name in names)
    buffers = {
        buffer.name: replace(buffer, kind="input" if buffer.name in inputs else "temporary")
        for buffer in graph.buffers
        if buffer.name in names
    }
    outputs = tuple(View(name, buffers[name].shape, buffers[name].stride) for name in results)
    return LoopGraph(graph.name, tuple(buffers.values()), inputs, (), chosen, outputs, graph.symbols)


def buffers_of(op: Op) -> Iterator[str]:
    """The buffers that an op reads or writes, possibly with repeats."""
    if isinstance(op, LoopNest):
        yield from (load.buffer for load in loads(op))
        yield from (store.buffer for store in op.stores)
        return
    yield from (view.buffer for view in views(op))
    yield from (name for name in (*op.outputs, *op.mutates) if name is not None)
