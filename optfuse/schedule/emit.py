"""From a solved instance to the text of a Triton module: each kernel back in loop IR, emitted, and put in order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from optfuse.compiler.codegen.deduplicate import share_kernels
from optfuse.compiler.codegen.host_program import MemoryLayout, Step
from optfuse.compiler.codegen.kernel_source import KernelSource
from optfuse.compiler.codegen.module import emit_module
from optfuse.compiler.codegen.shared_launch import share_launch
from optfuse.compiler.codegen.tiles import TileConfig
from optfuse.compiler.codegen.triton_kernel import emit_kernel
from optfuse.compiler.extract.extraction import Extraction
from optfuse.compiler.extract.solution_kernel import kernel_spec
from optfuse.compiler.ir.kernel_spec import KernelSpec
from optfuse.compiler.ir.nodes import Buffer, LoopNest
from optfuse.compiler.ir.sizes import Size
from optfuse.errors import PlanError
from optfuse.problem.instance import Instance
from optfuse.problem.solution import Kernel, Solution
from optfuse.report.summary import certificate
from optfuse.schedule.graph_cuts import steps_apart
from optfuse.schedule.library_buffers import library_buffers
from optfuse.schedule.size_peak import always_equal, buffer_bytes
from optfuse.solver.memory.footprint import Footprint, apart_footprint, arena_footprint, footprint
from optfuse.solver.memory.launch_order import all_launches
from optfuse.solver.result import SolveResult

#: Op names in a kernel's name; more are told by the comments inside.
NAMED_OPS = 4
#: Modules named at a launch.
NAMED_MODULES = 3


#: How temporaries are held: in one arena, each by itself, or whichever of the two takes the less memory.
Memory = Literal["arena", "apart", "least"]


def emit(
    extraction: Extraction, result: SolveResult, memory: Memory = "least", tiles: Mapping[str, TileConfig] | None = None
) -> str:
    """The module's source. It stands alone: it imports torch and triton only.

    ``tiles``: by kernel name, configurations that were found for kernels (``optfuse.tuning``); the others' are chosen.

    Raises:
        IllegalKernelError: If the solution holds a kernel for which there are no loops (the checker finds this first).
        PlanError: If the memory plan does not fit the graph, or a tile fits no kernel.
    """
    steps, layout = emitted_steps(extraction, result, memory, tiles)
    return module_text(extraction, result, steps, layout)


def module_text(extraction: Extraction, result: SolveResult, steps: Sequence[Step], layout: MemoryLayout) -> str:
    """The source of the module of these steps (``emitted_steps``)."""
    graph, apart = extraction.graph, steps_apart(extraction.graph, steps)
    return emit_module(graph, share_kernels(steps), layout, certificate=certificate_line(result), apart=apart)


def emitted_steps(
    extraction: Extraction, result: SolveResult, memory: Memory = "least", tiles: Mapping[str, TileConfig] | None = None
) -> tuple[list[Step], MemoryLayout]:
    """The launches and calls, in the order of the solution's kernels, and where they find memory. See ``emit``."""
    graph, solution = extraction.graph, result.solution
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    found = held(extraction, solution, memory)
    tiles = {} if tiles is None else tiles
    specs = kernel_specs(extraction, result, memory)
    lost = sorted(tiles.keys() - {spec.name for spec in specs.values()})
    if lost:
        raise PlanError(f"there is a tile for {lost[0]}, which is no kernel of {graph.name}")
    steps: list[Step] = []
    for launch in all_launches(len(solution.kernels), solution.launches):
        first = graph.ops[solution.kernels[launch[0]].ops[0]]
        if isinstance(first, LoopNest):
            written = [_written(specs[number], buffers, tiles) for number in launch]
            steps.append(written[0] if len(launch) == 1 else share_launch(f"{written[0].name}_and_more", written))
        else:
            steps.append(first)
    return steps, _layout(extraction.instance, solution, found)


def _written(spec: KernelSpec, buffers: Mapping[str, Buffer], tiles: Mapping[str, TileConfig]) -> KernelSource:
    return replace(emit_kernel(spec, buffers, config=tiles.get(spec.name)), label=launch_label(spec))


def step_ops(solution: Solution) -> list[tuple[int, ...]]:
    """The ops of each launch or call of an emitted program."""
    launches = all_launches(len(solution.kernels), solution.launches)
    return [tuple(sorted({op for k in launch for op in solution.kernels[k].ops})) for launch in launches]


def kernel_specs(extraction: Extraction, result: SolveResult, memory: Memory = "least") -> dict[int, KernelSpec]:
    """The kernels of loops, back in loop IR, by their place in the schedule."""
    graph, solution = extraction.graph, result.solution
    holding = held(extraction, solution, memory)
    found: dict[int, KernelSpec] = {}
    for number, kernel in enumerate(solution.kernels):
        if isinstance(graph.ops[kernel.ops[0]], LoopNest):
            inplace = written_in_place(extraction.instance, kernel, solution, holding)
            found[number] = kernel_spec(extraction, kernel, kernel_name(extraction, kernel, number), inplace)
    return found


def held(extraction: Extraction, solution: Solution, memory: Memory = "least") -> Footprint:
    """How the emitted program holds memory, and what the allocator will have handed out at most."""
    instance, lent = extraction.instance, library_buffers(extraction)
    if any(isinstance(size, Size) for buffer in extraction.graph.buffers for size in buffer.shape):
        return apart_footprint(instance, solution, lent, always_equal(buffer_bytes(extraction)))
    match memory:
        case "arena":
            return arena_footprint(instance, solution)
        case "apart":
            return apart_footprint(instance, solution, lent)
        case "least":
            return footprint(instance, solution, lent)


def _layout(instance: Instance, solution: Solution, found: Footprint) -> MemoryLayout:
    names = [buffer.name for buffer in instance.buffers]
    if found.arena:
        return MemoryLayout(solution.arena_bytes, {names[p.buffer]: p.offset for p in solution.placements})
    return MemoryLayout(heirs={names[new]: names[old] for new, old in found.heirs.items()})


def written_in_place(instance: Instance, kernel: Kernel, solution: Solution, found: Footprint) -> frozenset[str]:
    """Names of the buffers that a kernel writes where one lies that its ops read."""
    if not found.arena:
        return frozenset(instance.buffers[b].name for b in kernel.writes if b in found.heirs)
    offsets = {placement.buffer: placement.offset for placement in solution.placements}
    offers = [offer for op in kernel.ops for offer in instance.ops[op].offers if offer.scheme == kernel.scheme]
    read = {read.buffer for offer in offers for read in offer.reads if instance.buffers[read.buffer].bytes}
    taken = {offsets[buffer] for buffer in read - set(kernel.writes) if buffer in offsets}
    return frozenset(instance.buffers[b].name for b in kernel.writes if offsets.get(b) in taken)


def kernel_name(extraction: Extraction, kernel: Kernel, number: int) -> str:
    """A readable, unique name: its number in the schedule and what it computes, such as "k12_add_mean_rsqrt"."""
    words: dict[str, None] = {}
    for op in sorted(kernel.ops):
        origin = extraction.graph.ops[op].origin
        words[re.sub(r"[^A-Za-z0-9_]", "_", origin.target.split(".")[1] if "." in origin.target else origin.node)] = (
            None
        )
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
