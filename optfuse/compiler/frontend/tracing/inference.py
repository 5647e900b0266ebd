"""A model to one functional graph, without gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from torch.export.graph_signature import OutputKind
from torch.fx import GraphModule

from optfuse.compiler.frontend.calls.flat import Binding, bind_placeholders, take_literals
from optfuse.compiler.frontend.graph.captured import CallSpec, Captured, InputSource
from optfuse.compiler.frontend.graph.rewrite import copied
from optfuse.compiler.frontend.layouts.layouts import choose_layouts
from optfuse.compiler.frontend.operators.decompositions import exported_decompositions
from optfuse.compiler.frontend.passes import normalize
from optfuse.compiler.frontend.passes.attention import attend_with_masks
from optfuse.compiler.frontend.passes.effects import drop_effect_tokens
from optfuse.compiler.frontend.passes.epilogues import fuse_activations
from optfuse.compiler.frontend.passes.in_place import update_in_place
from optfuse.compiler.frontend.torch_internals.torch_bridge import shares_memory
from optfuse.compiler.frontend.torch_internals.torch_decompositions import decompose_exported
from optfuse.compiler.frontend.tracing.trace import Fed, PassedOnce, Traced, explain, feeds, trace
from optfuse.errors import CaptureError


def capture(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str = "model.inference",
) -> Captured:
    """Trace ``model(*args, **kwargs)`` without gradients to functional ATen, in the model's current mode.

    Shapes are static. Nothing runs on the data; constants are folded.

    Raises:
        CaptureError: If the model does not trace to one graph, or writes into one of two inputs that share memory.
    """
    with torch.no_grad():
        traced = trace(model, args, kwargs, name)
        module = traced.program.graph_module
        module.graph = fuse_activations(attend_with_masks(module)).graph
        program = _decompose(traced, name)
    graph = copied(program.graph_module)
    drop_effect_tokens(graph)
    fed = feeds(traced, program)
    written = _written(program, fed, PassedOnce.PREFIX if traced.shared else "")
    sources, constants = bind_placeholders(graph, _bindings(graph, fed, written))
    literals = take_literals(graph)
    captured = Captured(
        name=name,
        graph=graph,
        inputs=sources,
        constants=constants,
        mutations=tuple((output, sources.index(source)) for output, source in written),
        call=CallSpec(
            in_spec=traced.in_spec,
            out_spec=program.call_spec.out_spec,
            fixed=traced.fixed,
            shared=traced.shared,
            user_outputs=tuple(
                k for k, spec in enumerate(program.graph_signature.output_specs) if spec.kind is OutputKind.USER_OUTPUT
            ),
            literals=literals,
        ),
    )
    return update_in_place(choose_layouts(normalize(captured)))


def _bindings(graph: GraphModule, fed: list[Fed], written: list[tuple[int, InputSource]]) -> list[Binding]:
    """What becomes of each placeholder: an input that is neither read nor written (a tied parameter) goes."""
    kept = {source for _, source in written}
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    return [
        feed.constant if feed.source is None else feed.source if node.users or feed.source in kept else None
        for node, feed in zip(placeholders, fed, strict=True)
    ]


def _written(program: torch.export.ExportedProgram, fed: list[Fed], prefix: str) -> list[tuple[int, InputSource]]:
    """(output position, input) of every value that must be copied into an input."""
    sources = [feed.source for feed in fed]
    by_target = {(source.kind, source.target): source for source in sources if source is not None}
    by_name = {spec.arg.name: s for spec, s in zip(program.graph_signature.input_specs, sources, strict=True)}
    pairs = []
    for position, spec in enumerate(program.graph_signature.output_specs):
        match spec.kind.name:
            case "USER_OUTPUT" | "TOKEN":
                continue
            case "BUFFER_MUTATION":
                source = by_target["buffer", str(spec.target).removeprefix(prefix)]
            case "PARAMETER_MUTATION":
                source = by_target["parameter", str(spec.target).removeprefix(prefix)]
            case "USER_INPUT_MUTATION":
                source = by_name[str(spec.target)]
            case kind:
                raise CaptureError(f"the model's graph has an output of kind {kind}; return tensors from forward")
        assert source is not None
        pairs.append((position, source))
    return pairs


def _decompose(traced: Traced, name: str) -> torch.export.ExportedProgram:
    """Functionalise. Inputs that share memory are traced as independent, which fails or is wrong if one is written."""
    inputs = [(traced.paths[k], traced.leaves[k]) for k in traced.positions]
    overlap = _overlap(inputs)
    try:
        program = decompose_exported(traced.program, exported_decompositions())
    except (RuntimeError, AssertionError) as error:  # torch's own words for it differ
        everywhere = overlap or _overlap([*inputs, *_state(traced.program)])
        if everywhere is None:
            raise CaptureError(explain(name, error)) from error
        raise CaptureError(_say_overlap(name, everywhere)) from error
    kinds = {spec.kind.name for spec in program.graph_signature.output_specs}
    if overlap is not None and "USER_INPUT_MUTATION" in kinds:
        raise CaptureError(_say_overlap(name, overlap))
    return program


def _state(program: torch.export.ExportedProgram) -> list[tuple[str, Any]]:
    return [*program.named_parameters(), *program.named_buffers(), *program.constants.items()]


def _overlap(values: Sequence[tuple[str, Any]]) -> tuple[str, str] | None:
    """The names of two tensors in one memory, if there are such."""
    tensors = [(path, value) for path, value in values if isinstance(value, torch.Tensor)]
    for (path, leaf), (other, neighbour) in combinations(tensors, 2):
        if shares_memory(leaf, neighbour):
            return path, other
    return None


def _say_overlap(name: str, overlap: tuple[str, str]) -> str:
    return f"{name} writes in place, and {overlap[0]} shares memory with {overlap[1]}: pass a clone of one of them"
