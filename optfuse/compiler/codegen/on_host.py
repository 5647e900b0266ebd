"""What a graph on a GPU has to do with the host's memory; mostly nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optfuse.compiler.codegen.kernel import KernelSource
from optfuse.compiler.codegen.text import tuple_text
from optfuse.compiler.ir.devices import HOST, main_device
from optfuse.compiler.ir.nodes import Buffer, LibraryCall, LoopGraph, View, views


def host_facts(graph: LoopGraph, steps: Sequence[KernelSource | LibraryCall]) -> list[str]:
    """Lines of a module: HOST, if inputs or constants must stay in the host's memory, and DRAWS_ON_HOST.

    They must stay where operators on the host use them, and where the caller gets them back. Others may go to where
    the kernels are.
    """
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    if main_device(buffer.device for buffer in graph.buffers) == HOST:
        return []
    calls = [step for step in steps if isinstance(step, LibraryCall) and _writes_host(step, buffers)]
    used = {out.buffer for out in graph.outputs if isinstance(out, View)}
    used |= {view.buffer for call in calls for view in views(call)}
    kept = [f'"{name}"' for name in (*graph.inputs, *graph.constants) if name in used and buffers[name].device == HOST]
    lines: list[str] = []
    if kept:
        lines += ["# inputs and constants that stay in the host's memory", f"HOST = {tuple_text(kept)}", ""]
    if any(call.random for call in calls):
        lines += ["# random numbers are drawn on the host: a CUDA graph would repeat them", "DRAWS_ON_HOST = True", ""]
    return lines


def _writes_host(call: LibraryCall, buffers: Mapping[str, Buffer]) -> bool:
    return any(buffers[name].device == HOST for name in (*call.outputs, *call.mutates) if name is not None)
