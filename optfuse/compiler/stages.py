"""The compiler's stages before the solver, from a captured graph to its fusion problem."""

from __future__ import annotations

from dataclasses import replace

from optfuse.compiler.codegen.library_calls import takes_out
from optfuse.compiler.extract.extraction import Extraction, extract
from optfuse.compiler.frontend.graph.captured import Captured, donated_inputs, shared_memory
from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph
from optfuse.compiler.ir.verify_graph import verify
from optfuse.compiler.lower import lower
from optfuse.compiler.simplify.decisions import of_graph
from optfuse.compiler.simplify.inline_variants import with_inlined
from optfuse.compiler.simplify.matmul_variants import with_dots
from optfuse.compiler.simplify.pass_list import rewrite
from optfuse.problem.device_files import load_device
from optfuse.problem.instance import Device


def fusion_problem(captured: Captured, device: str) -> Extraction:
    """The fusion problem of a captured graph."""
    target = load_device(device)
    made = rewrite(lowered(captured), target)
    graph = with_dots(with_inlined(made.graph), target)
    problem = extract(
        graph,
        target,
        donated=donated_inputs(captured, graph.inputs),
        shared=shared_memory(captured, graph.inputs),
        allocates=allocates,
    )
    return replace(problem, decided=(*made.decided, *of_graph(graph)))


def allocates(call: LibraryCall) -> bool:
    """Whether a library call allocates its results itself."""
    return not takes_out(call)


def loop_graph(captured: Captured, device: Device) -> LoopGraph:
    """The loop graph that is scheduled: lowered, and rewritten by ``simplify.pass_list.PASSES``."""
    return rewrite(lowered(captured), device).graph


def lowered(captured: Captured) -> LoopGraph:
    """The loop graph with one op for each op of the captured graph, verified."""
    graph = lower(
        captured.graph,
        name=captured.name,
        mutations=captured.mutations,
        constants=captured.constants,
        strides=captured.strides,
        decisions=captured.decisions,
    )
    verify(graph)
    return graph
