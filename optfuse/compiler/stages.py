"""The compiler before the solver, one line a stage: from a captured graph to the fusion problem."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from optfuse.compiler.codegen.library_calls import takes_out
from optfuse.compiler.extract.extraction import Extraction, extract
from optfuse.compiler.frontend.captured import Captured, donated_inputs
from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph
from optfuse.compiler.ir.verify_graph import verify
from optfuse.compiler.lower import lower
from optfuse.compiler.simplify.decisions import of_graph
from optfuse.compiler.simplify.pass_list import PASSES, UNSPLIT, rewrite
from optfuse.compiler.simplify.reduction_variants import reduction_variants
from optfuse.problem.device_files import load_device
from optfuse.problem.instance import Device

#: What of a reduction is left to the solver. "rule": nothing, long ones with few results are split before. "all":
#: whether each of them is split.
Variants = Literal["rule", "all"]


def fusion_problem(captured: Captured, device: str, variants: Variants = "rule") -> Extraction:
    """The stages before the solver, for one graph."""
    target = load_device(device)
    made = rewrite(lowered(captured), target, PASSES if variants == "rule" else UNSPLIT)
    alternatives = None if variants == "rule" else reduction_variants(made.graph, target)
    graph = made.graph if alternatives is None else alternatives.graph
    donated = donated_inputs(captured, graph.inputs)
    problem = extract(graph, target, donated=donated, allocates=allocates, alternatives=alternatives)
    return replace(problem, decided=(*made.decided, *of_graph(graph)))


def allocates(call: LibraryCall) -> bool:
    """Whether a library call allocates its results itself."""
    return not takes_out(call)


def loop_graph(captured: Captured, device: Device) -> LoopGraph:
    """The graph that is scheduled: lowered, and rewritten by ``compiler.simplify.pass_list.PASSES``."""
    return rewrite(lowered(captured), device).graph


def lowered(captured: Captured) -> LoopGraph:
    """The loop graph, one op for each of the capture's; verified."""
    graph = lower(
        captured.graph,
        name=captured.name,
        mutations=captured.mutations,
        constants=captured.constants,
        strides=captured.strides,
    )
    verify(graph)
    return graph
