"""The compiler's stages before the solver, from a captured graph to its fusion problem."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from optfuse.compiler.codegen.library_calls import takes_out
from optfuse.compiler.extract.extraction import Extraction, extract
from optfuse.compiler.frontend.captured import Captured, donated_inputs, shared_memory
from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph
from optfuse.compiler.ir.verify_graph import verify
from optfuse.compiler.lower import lower
from optfuse.compiler.simplify.decisions import of_graph
from optfuse.compiler.simplify.matmul_variants import dot_variants, with_dots
from optfuse.compiler.simplify.pass_list import PASSES, UNSPLIT, rewrite
from optfuse.compiler.simplify.reduction_variants import reduction_variants
from optfuse.problem.device_files import load_device
from optfuse.problem.instance import Device

#: How reductions are split: "rule": long ones with few results are, before the solver; "all": the solver decides for
#: each.
Variants = Literal["rule", "all"]


def fusion_problem(captured: Captured, device: str, variants: Variants = "rule") -> Extraction:
    """The fusion problem of a captured graph."""
    target = load_device(device)
    made = rewrite(lowered(captured), target, PASSES if variants == "rule" else UNSPLIT)
    graph = with_dots(made.graph, target)
    alternatives = dot_variants(graph)
    if variants == "all":
        alternatives = reduction_variants(graph, target)
        graph = alternatives.graph
        alternatives = replace(alternatives, variants=(*alternatives.variants, *dot_variants(graph).variants))
    problem = extract(
        graph,
        target,
        donated=donated_inputs(captured, graph.inputs),
        shared=shared_memory(captured, graph.inputs),
        allocates=allocates,
        alternatives=alternatives,
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
