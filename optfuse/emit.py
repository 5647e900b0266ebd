"""From a solved instance to the text of a Triton module: each kernel back in loop IR, emitted, and put in order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from optfuse.codegen.host import MemoryLayout
from optfuse.codegen.kernel import emit_kernel
from optfuse.codegen.module import emit_module
from optfuse.codegen.shared import share_kernels
from optfuse.extract.build import Extraction
from optfuse.extract.kernel import kernel_spec
from optfuse.ir.kernel import KernelSpec
from optfuse.ir.nodes import LoopNest
from optfuse.problem.instance import Instance
from optfuse.problem.solution import Kernel
from optfuse.report.summary import certificate
from optfuse.solve.result import SolveResult

#: Op names in a kernel's name; more are told by the comments inside.
NAMED_OPS = 4
#: Modules named at a launch.
NAMED_MODULES = 3


def emit(extraction: Extraction, result: SolveResult) -> str:
    """The module's source. It stands alone: it imports torch and triton only.

    Raises
    ------
    IllegalKernelError
        If the solution holds a kernel for which there are no loops (the checker finds this first).
    PlanError
        If the memory plan does not fit the graph.
    """
    graph, solution = extraction.graph, result.solution
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    names = [buffer.name for buffer in extraction.instance.buffers]
    offsets = {placement.buffer: placement.offset for placement in solution.placements}
    steps = []
    for number, kernel in enumerate(solution.kernels):
        first = graph.ops[kernel.ops[0]]
        if isinstance(first, LoopNest):
            inplace = written_in_place(extraction.instance, kernel, offsets)
            spec = kernel_spec(extraction, kernel, kernel_name(extraction, kernel, number), inplace)
            steps.append(replace(emit_kernel(spec, buffers), label=launch_label(spec)))
        else:
            steps.append(first)
    memory = MemoryLayout(solution.arena_bytes, {names[buffer]: offset for buffer, offset in offsets.items()})
    return emit_module(graph, share_kernels(steps), memory, certificate=certificate_line(result))


def written_in_place(instance: Instance, kernel: Kernel, offsets: Mapping[int, int]) -> frozenset[str]:
    """Names of the buffers that a kernel writes at the offset of one that its ops read."""
    offers = [offer for op in kernel.ops for offer in instance.ops[op].offers if offer.scheme == kernel.scheme]
    read = {read.buffer for offer in offers for read in offer.reads if instance.buffers[read.buffer].bytes}
    taken = {offsets[buffer] for buffer in read - set(kernel.writes) if buffer in offsets}
    return frozenset(instance.buffers[b].name for b in kernel.writes if offsets.get(b) in taken)


def kernel_name(extraction: Extraction, kernel: Kernel, number: int) -> str:
    """A readable, unique name: its number in the schedule and what it computes, such as "k12_add_mean_rsqrt"."""
    words: dict[str, None] = {}
    for op in sorted(kernel.ops):
        origin = extraction.graph.ops[op].origin
        words[re.sub(r"\W", "_", origin.target.split(".")[1] if "." in origin.target else origin.node)] = None
    kept = [word.strip("_") for word in list(words)[:NAMED_OPS]]
    return "_".join([f"k{number}", *kept])


def launch_label(spec: KernelSpec) -> str:
    """The kernel's name in the schedule and the model's modules that it computes for, the first few."""
    modules = list(dict.fromkeys(m.nest.origin.module for m in spec.members if m.nest.origin.module))
    text = ", ".join(modules[:NAMED_MODULES]) + (", ..." if len(modules) > NAMED_MODULES else "")
    return f"{spec.name}: {text}" if text else spec.name


def certificate_line(result: SolveResult) -> str:
    """What was proved, in one line with the figures."""
    return (
        f"{result.objective / 1e6:.1f} us under the cost model (greedy {result.greedy_objective / 1e6:.1f} us, "
        f"lower bound {result.bound / 1e6:.1f} us): {certificate(result)}"
    )
