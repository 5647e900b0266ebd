"""Some ops of a graph as a graph of its own: what one kernel computes, of what it is given."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from optfuse.compiler.ir.nodes import Arg, LoopGraph, LoopNest, Op, View
from optfuse.compiler.ir.verify_nest import loads


def part(graph: LoopGraph, ops: Collection[int], given: Sequence[str], results: Sequence[str]) -> LoopGraph:
    """The ops at some positions, in the graph's order, over buffers that are ``given``.

    The new graph's inputs are those of ``given`` that the ops touch, in that order, constants among them. Its outputs
    are all of each buffer of ``results``; one that is given as well keeps the elements that no op writes.
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
    return LoopGraph(graph.name, tuple(buffers.values()), inputs, (), chosen, outputs)


def buffers_of(op: Op) -> Iterator[str]:
    """The buffers that an op reads or writes, some of them more than once."""
    if isinstance(op, LoopNest):
        yield from (load.buffer for load in loads(op))
        yield from (store.buffer for store in op.stores)
        return
    yield from (view.buffer for view in _views((op.args, tuple(value for _, value in op.kwargs))))
    yield from (name for name in (*op.outputs, *op.mutates) if name is not None)


def _views(arg: Arg) -> Iterator[View]:
    if isinstance(arg, View):
        yield arg
    elif isinstance(arg, tuple):
        for item in arg:
            yield from _views(item)
