"""Buffers that library calls allocate, and whose memory later buffers may reuse."""

from __future__ import annotations

from optfuse.compiler.codegen.library_calls import owns_results
from optfuse.compiler.extract.extraction import Extraction
from optfuse.compiler.ir.devices import main_device
from optfuse.compiler.ir.nodes import LibraryCall


def library_buffers(extraction: Extraction) -> set[int]:
    """The buffers that a library allocates and does not keep, so that others may reuse their memory."""
    instance = extraction.instance
    numbers = {buffer.name: number for number, buffer in enumerate(instance.buffers)}
    devices = {buffer.name: buffer.device for buffer in extraction.graph.buffers}
    main = main_device(devices.values())
    shared = {buffer.base for buffer in extraction.graph.buffers}
    return {
        numbers[name]
        for op in extraction.graph.ops
        if isinstance(op, LibraryCall) and owns_results(op.target)
        for name in op.outputs
        if name is not None and name not in shared
        if not instance.buffers[numbers[name]].output and devices[name] == main
    }
