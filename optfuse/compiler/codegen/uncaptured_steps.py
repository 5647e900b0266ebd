"""The emitted function that runs steps which no CUDA graph can hold, and the values that such steps may read."""

from __future__ import annotations

from collections.abc import Sequence

from optfuse.compiler.codegen.kernel_source import KernelSource
from optfuse.compiler.ir.devices import HOST
from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph, Op, View, views

#: The function of an emitted module through which such steps are called, and its text.
NAME = "apart"
DEFINITION = '''\
def apart(reason, call, *arguments, **named):
    """Call what a CUDA graph cannot hold (for a reason) or perhaps cannot (""); a recorder of graphs replaces this."""
    return call(*arguments, **named)
'''


def moved_numbers(graph: LoopGraph, steps: Sequence[KernelSource | Op]) -> frozenset[str]:
    """Inputs and constants of one element in host memory that ``Program.accept`` moves to the device before a call."""
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    given = [name for name in (*graph.inputs, *graph.constants) if buffers[name].device == HOST]
    if any(buffers[name].shape for name in given):
        return frozenset()
    stay = {out.buffer for out in graph.outputs if isinstance(out, View)}
    for step in steps:
        if isinstance(step, LibraryCall):
            written = [name for name in (*step.outputs, *step.mutates) if name is not None]
            if any(buffers[name].device == HOST for name in written):
                stay |= {view.buffer for view in views(step)}
    return frozenset(given) - stay
