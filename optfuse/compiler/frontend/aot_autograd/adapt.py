"""State a graph of AOTAutograd's as a Captured: over tensors alone, normalized and laid out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch.fx import GraphModule

from optfuse.compiler.frontend.aot_autograd.kept_values import Kept
from optfuse.compiler.frontend.calls.aliased_outputs import take_windows, views_of_arguments
from optfuse.compiler.frontend.calls.convention import Convention, symbol_positions
from optfuse.compiler.frontend.calls.flat import (
    Binding,
    attribute_tensors,
    bind_placeholders,
    specialize_sizes,
    take_literals,
    take_objects,
    take_writes,
)
from optfuse.compiler.frontend.calls.remainder import is_sparse_argument, take_remainder
from optfuse.compiler.frontend.graph.captured import Captured, InputSource
from optfuse.compiler.frontend.graph.rewrite import copied
from optfuse.compiler.frontend.layouts.layouts import choose_layouts
from optfuse.compiler.frontend.passes import normalize
from optfuse.compiler.frontend.passes.effects import drop_effect_tokens
from optfuse.compiler.frontend.passes.in_place import update_in_place
from optfuse.compiler.frontend.torch_internals.torch_bridge import flat_input_index
from optfuse.compiler.frontend.torch_internals.torch_sizes import expression_of
from optfuse.compiler.ir.size_decisions import Decisions
from optfuse.errors import CaptureError

#: Where an input comes from, or the value of a constant.
Feed = InputSource | torch.Tensor


@dataclass(frozen=True, slots=True)
class Adapted:
    """A graph of AOTAutograd's as a Captured, and how torch calls it."""

    captured: Captured
    convention: Convention


def adapt(
    module: GraphModule,
    name: str,
    feeds: Sequence[Feed],
    visible: frozenset[int] | None = None,
    given: Mapping[str, Kept] | None = None,
    decisions: Decisions | None = None,
    *,
    may_leave: bool = False,
) -> Adapted:
    """One of AOTAutograd's graphs, over tensors alone, normalized and laid out.

    ``given``: by placeholder of a backward graph, how the forward graph keeps it. ``may_leave``: nodes that no plan can
    hold may run after the program; else they are an error.
    """
    given = given or {}
    graph = copied(module)
    specialize_sizes(graph, keep=decisions is not None)
    tokens = drop_effect_tokens(graph)
    remainder = take_remainder(graph) if may_leave else None
    placeholders = graph.graph.find_nodes(op="placeholder")
    backward = name.endswith(".backward")
    bindings = [
        None
        if node in tokens or (may_leave and is_sparse_argument(node))
        else _binding(node, k, len(placeholders), feeds, backward)
        for k, node in enumerate(placeholders)
    ]
    views = views_of_arguments(graph, visible or ())  # without gradients torch makes them of the arguments itself
    if remainder is not None and visible is not None:  # torch reads them: they leave as traced
        visible |= frozenset(remainder.results)
    returned = range(len(graph.graph.output_node().args[0]))
    written = take_writes(graph)
    windows = take_windows(graph, returned if visible is None else visible)
    objects = take_objects(graph)
    inputs, constants = bind_placeholders(graph, bindings)
    literals = take_literals(graph)
    kept = tuple(k for k, binding in enumerate(bindings) if isinstance(binding, InputSource))
    numbers = {} if decisions is None else symbol_positions(bindings, decisions)
    mutations = tuple((position, kept.index(placeholders.index(node))) for position, node in written)
    constants |= attribute_tensors(graph)
    memory = {node.name: given[node.name].memory for node in placeholders if node.name in given}
    captured = Captured(
        name, graph, inputs, constants, mutations, visible, memory=memory, decisions=decisions, numbers=tuple(numbers)
    )
    if remainder is not None:
        captured = replace(captured, remainder=remainder.names)
    symbols = tuple(expression_of(value) for k, value in enumerate(bindings) if k in numbers.values())
    convention = Convention(kept, literals, objects, windows, tuple(numbers.values()), symbols, remainder, views)
    if convention.symbols_read - set(symbols):
        raise CaptureError(f"{name} returns a number, or windows of one memory, of a size that no argument is")
    strides = {name: one.strides for name, one in given.items()}
    captured = update_in_place(choose_layouts(normalize(captured), strides))
    return Adapted(captured, convention)


def _binding(node: torch.fx.Node, k: int, total: int, feeds: Sequence[Feed], backward: bool) -> Binding:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return value
    if backward:
        return InputSource("saved", node.name)
    index = flat_input_index(node)
    if index is None and total == len(feeds):
        index = k
    return InputSource("user", node.name) if index is None else feeds[index]
