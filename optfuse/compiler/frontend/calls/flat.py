"""Turn the placeholders of a traced graph into the tensors-only inputs of a Captured."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from optfuse.compiler.frontend.graph.captured import InputSource
from optfuse.compiler.frontend.torch_internals.torch_bridge import tree_map
from optfuse.compiler.frontend.torch_internals.torch_sizes import same_numbers, static_value

#: What a graph's argument may be, beside objects.
_VALUES = (torch.Tensor, bool, int, float, complex, str, type(None), torch.SymInt, torch.SymFloat, torch.SymBool)

Binding = InputSource | torch.Tensor | int | float | bool | None


def bind_placeholders(
    graph: GraphModule, bindings: Sequence[Binding]
) -> tuple[tuple[InputSource, ...], dict[str, torch.Tensor]]:
    """Keep, in ``graph``, only the placeholders of true inputs; changes the graph in place.

    Args:
        bindings: One per placeholder: an InputSource stays a placeholder, a tensor becomes a constant, a number is
            written into its users, and None marks a placeholder that nothing uses.

    Returns:
        The remaining inputs, and the constants by attribute name.
    """
    sources: list[InputSource] = []
    constants: dict[str, torch.Tensor] = {}
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for node, binding in zip(placeholders, bindings, strict=True):
        if isinstance(binding, InputSource):
            sources.append(binding)
            continue
        if isinstance(binding, torch.Tensor):
            name = f"constant_{len(constants)}"
            constants[name] = binding.detach()
            graph.register_buffer(name, constants[name], persistent=False)
            with graph.graph.inserting_after(node):
                constant = graph.graph.get_attr(name)
            constant.meta = dict(node.meta)
            node.replace_all_uses_with(constant)
        else:
            replace_by_value(node, binding)
        graph.graph.erase_node(node)
    graph.recompile()
    return tuple(sources), constants


def attribute_tensors(graph: GraphModule) -> dict[str, torch.Tensor]:
    """The tensors that a graph's get_attr nodes name: values that the model's own code made while it was traced."""
    found: dict[str, torch.Tensor] = {}
    for node in graph.graph.find_nodes(op="get_attr"):
        value = attrgetter(str(node.target))(graph)
        if isinstance(value, torch.Tensor):
            found[str(node.target)] = value.detach()
    return found


def replace_by_value(node: Node, value: object) -> None:
    """Write a Python value wherever ``node`` is used."""
    for user in list(node.users):
        user.args = map_arg(user.args, lambda arg: value if arg is node else arg)
        user.kwargs = map_arg(user.kwargs, lambda arg: value if arg is node else arg)


def specialize_sizes(graph: GraphModule, keep: bool = False) -> None:
    """Replace symbolic sizes by the numbers they stand for, in place: shapes are static from here on.

    ``keep``: the tracer's symbolic numbers stay, written where they are used.
    """
    for node in list(graph.graph.nodes):
        if "val" in node.meta and not keep:
            node.meta["val"] = tree_map(static_value, node.meta["val"])
        if node.op == "call_function" and isinstance(node.meta.get("val"), (bool, int, float, torch.SymInt)):
            replace_by_value(node, node.meta["val"])
            graph.graph.erase_node(node)
    graph.recompile()


def take_writes(graph: GraphModule) -> tuple[tuple[int, Node], ...]:
    """Copies into placeholders, with which a graph ends, become further outputs: (output position, placeholder)."""
    output = graph.graph.output_node()
    flat = list(output.args[0])
    found = []
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        written, value = node.args[:2]
        like = isinstance(written, Node) and isinstance(value, Node) and same_form(written, value)
        if like and written.op == "placeholder" and not any(written is known for _, known in found):
            found.append((len(flat), written))
            flat.append(value)
            node.replace_all_uses_with(value)
            graph.graph.erase_node(node)
            flat = [value if item is node else item for item in flat]
    output.args = (tuple(flat),)
    return tuple(found)


def same_form(one: Node, other: Node) -> bool:
    """Whether two nodes yield tensors of the same shape and dtype."""
    first, second = one.meta["val"], other.meta["val"]
    return first.dtype == second.dtype and same_numbers(first.shape, second.shape)


def is_object(node: Node) -> bool:
    """Whether a placeholder is neither a tensor nor a number: a process group or a device mesh, for example."""
    return node.op == "placeholder" and not isinstance(node.meta.get("val"), _VALUES)


def take_objects(graph: GraphModule) -> tuple[tuple[int, int], ...]:
    """Outputs that are objects among the arguments: (output position, placeholder's number); None takes their place."""
    placeholders = graph.graph.find_nodes(op="placeholder")
    output = graph.graph.output_node()
    flat = list(output.args[0])
    found = []
    for position, value in enumerate(flat):
        if isinstance(value, Node) and is_object(value):
            found.append((position, placeholders.index(value)))
            flat[position] = None
    output.args = (tuple(flat),)
    return tuple(found)


def take_literals(graph: GraphModule) -> tuple[tuple[int, object], ...]:
    """Outputs that are neither tensors, known numbers nor None, with their positions; in the graph None stands there.

    Numbers that torch knows by symbols are among them.
    """
    output = graph.graph.output_node()
    flat = list(output.args[0])
    found = []
    for position, value in enumerate(flat):
        if not isinstance(value, (Node, bool, int, float, type(None))):
            found.append((position, value))
            flat[position] = None
    output.args = (tuple(flat),)
    return tuple(found)
