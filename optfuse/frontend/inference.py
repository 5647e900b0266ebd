"""A model to one functional graph, without gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.export.graph_signature import OutputKind
from torch.fx import GraphModule

from optfuse.errors import CaptureError
from optfuse.frontend.captured import CallSpec, Captured, InputSource
from optfuse.frontend.decompositions import decompositions
from optfuse.frontend.flat import Binding, bind_placeholders, take_literals
from optfuse.frontend.passes import normalize
from optfuse.frontend.passes.rewrite import copied
from optfuse.frontend.torch_bridge import decompose_exported, shares_memory
from optfuse.frontend.trace import Fed, Traced, feeds, trace


def capture(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str = "model.inference",
) -> Captured:
    """Trace ``model(*args, **kwargs)`` without gradients to functional ATen, in the model's current mode.

    Shapes are static. Nothing runs on the data; constants are folded.

    Raises
    ------
    CaptureError
        If the model does not trace to one graph, or writes into one of two inputs that share memory.
    """
    with torch.no_grad():
        traced = trace(model, args, kwargs, name)
        program = decompose_exported(traced.program, decompositions())
    graph = copied(program.graph_module)
    fed = feeds(traced, program)
    written = _written(program, fed)
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
            out_spec=program.call_spec.out_spec,  # type: ignore[arg-type]
            fixed=traced.fixed,
            shared=traced.shared,
            user_outputs=tuple(
                k for k, spec in enumerate(program.graph_signature.output_specs) if spec.kind is OutputKind.USER_OUTPUT
            ),
            literals=literals,
        ),
    )
    _refuse_overlap(captured, traced)
    return normalize(captured)


def _bindings(graph: GraphModule, fed: list[Fed], written: list[tuple[int, InputSource]]) -> list[Binding]:
    """What becomes of each placeholder: an input that is neither read nor written (a tied parameter) goes."""
    kept = {source for _, source in written}
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    return [
        feed.constant if feed.source is None else feed.source if node.users or feed.source in kept else None
        for node, feed in zip(placeholders, fed, strict=True)
    ]


def _written(program: torch.export.ExportedProgram, fed: list[Fed]) -> list[tuple[int, InputSource]]:
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
                source = by_target["buffer", str(spec.target)]
            case "PARAMETER_MUTATION":
                source = by_target["parameter", str(spec.target)]
            case "USER_INPUT_MUTATION":
                source = by_name[str(spec.target)]
            case kind:
                raise CaptureError(f"the model's graph has an output of kind {kind}; return tensors from forward")
        assert source is not None
        pairs.append((position, source))
    return pairs


def _refuse_overlap(captured: Captured, traced: Traced) -> None:
    """Tracing takes two inputs for independent; that is wrong when one is written and the other shares its memory."""
    written = {captured.inputs[k].position for _, k in captured.mutations if captured.inputs[k].kind == "user"}
    same = {again for _, again in traced.shared}
    tensors = [(k, leaf) for k, leaf in enumerate(traced.leaves) if isinstance(leaf, torch.Tensor) and k not in same]
    for k, leaf in tensors:
        for other, neighbour in tensors:
            if k != other and k in written and shares_memory(leaf, neighbour):
                raise CaptureError(
                    f"{captured.name}: the model writes into {traced.paths[k]}, which shares memory with "
                    f"{traced.paths[other]}; pass a clone of one of them"
                )
