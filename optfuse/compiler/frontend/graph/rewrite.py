"""Helpers of the passes: copy a graph, insert a node with its fake value, find the values that leave the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.torch_internals.torch_bridge import (
    OpOverload,
    graph_module,
    is_mutating,
    is_random,
    operator_name,
    returns_of,
)
from optfuse.compiler.frontend.torch_internals.torch_fakes import fake_result
from optfuse.compiler.ir.collectives import COMMUNICATION

aten = torch.ops.aten

#: Operators whose result shares memory with their first argument.
VIEWS = frozenset(
    {
        aten.alias.default,
        aten.as_strided.default,
        aten.detach.default,
        aten.diagonal.default,
        aten.expand.default,
        aten.permute.default,
        aten.reshape.default,
        aten.select.int,
        aten.slice.Tensor,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.t.default,
        aten.transpose.int,
        aten.unfold.default,
        aten.unsqueeze.default,
        aten.view.default,
        aten.view.dtype,
    }
)

#: Operators that become loops, beside pointwise ones.
_LOOPS = frozenset("_to_copy clone sum mean var_mean amax amin".split())

#: Operators that find elements by their place in the storage of the first argument.
BY_PLACE = (aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default)


def copied(graph: GraphModule) -> GraphModule:
    """A copy whose nodes may be changed; attributes and values in ``meta`` are shared with the original."""
    nodes = Graph()
    values: dict[Node, Node] = {}
    for node in graph.graph.nodes:
        if node.op == "output":
            copy = nodes.output(map_arg(node.args[0], values.__getitem__))
        else:
            copy = nodes.create_node(node.op, node.target, name=node.name, type_expr=node.type)
            copy.args = map_arg(node.args, values.__getitem__)  # after it: create_node looks into its arguments slowly
            copy.kwargs = map_arg(node.kwargs, values.__getitem__)
            values[node] = copy
        copy.meta = dict(node.meta)
    return graph_module(graph, nodes)


def with_graph(captured: Captured, graph: GraphModule, constants: Mapping[str, torch.Tensor] | None = None) -> Captured:
    """``captured`` with a changed graph: unused nodes leave, unused constants too."""
    graph.graph.eliminate_dead_code(is_impure_node=is_impure)
    graph.recompile()
    used = {node.target for node in graph.graph.nodes if node.op == "get_attr"}
    known = {**captured.constants, **(constants or {})}
    return replace(captured, graph=graph, constants={name: known[name] for name in sorted(used & known.keys())})


def is_impure(node: Node) -> bool:
    """Whether a node without users must stay: inputs, outputs, and what draws, writes, sends, or returns nothing.

    A collective whose result one rank does not use is one that other ranks wait for.
    """
    if node.op in {"placeholder", "output"}:
        return True
    if isinstance(node.target, OpOverload):
        effect = is_mutating(node.target) or is_random(node.target) or returns_of(node.target) == 0
        return effect or node.target.namespace in COMMUNICATION
    return node.op == "call_function" and node.is_impure()


def stays(node: Node) -> bool:
    """Whether a node without users must stay in a graph before autograd: only pure ATen operators may leave."""
    return is_impure(node) or not isinstance(node.target, OpOverload)


def retargeted(graph: GraphModule, functions: Mapping[Any, Callable[..., Any]]) -> GraphModule:
    """A copy that calls other functions, of the same arguments, in place of some; the graph itself if it calls none."""
    if not any(node.target in functions for node in graph.graph.nodes):
        return graph
    graph = copied(graph)
    for node in graph.graph.nodes:
        node.target = functions.get(node.target, node.target)
    graph.recompile()
    return graph


def insert(
    graph: Graph, before: Node, target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> Node:
    """A new node just before ``before``, with its fake value and ``before``'s source information."""
    with graph.inserting_before(before):
        node = graph.call_function(target, tuple(args), dict(kwargs or {}))
    node.meta = {key: value for key, value in before.meta.items() if key != "val"}
    node.meta["val"] = fake_result(target, args, kwargs or {}, like=before.meta.get("val"))
    return node


def with_constant(
    graph: GraphModule,
    node: Node,
    value: torch.Tensor,
    known: Mapping[str, torch.Tensor],
    made: dict[str, torch.Tensor],
) -> Node:
    """A node that is a new constant, before ``node``; ``made`` gets it by a name that is in neither mapping."""
    name = f"folded_{len(made)}"
    while name in known or name in made:
        name += "_"
    made[name] = value
    graph.register_buffer(name, value, persistent=False)
    with graph.graph.inserting_before(node):
        constant = graph.graph.get_attr(name)
    layout = (value.shape, value.stride())
    kind = {"dtype": value.dtype, "device": value.device}
    constant.meta = {**node.meta, "val": fake_result(torch.empty_strided, layout, kind, like=node.meta["val"])}
    return constant


def swap(node: Node, other: Node) -> None:
    """Let all users of ``node`` use ``other``, and remove ``node``."""
    node.replace_all_uses_with(other)
    node.graph.erase_node(node)


def become(node: Node, target: Any, *args: Any) -> torch.Tensor:
    """Let a node be another call, whose operands stand before it, and return its new value; its users stay."""
    node.target, node.args, node.kwargs = target, args, {}
    return fake_result(target, args, {}, like=node.meta["val"])


def become_images(node: Node, last: Node) -> torch.Tensor:
    """Let a node be images with their channels in front, (N, C, ...), of such with their channels last."""
    rank = last.meta["val"].dim()
    return become(node, aten.permute.default, last, [0, rank - 1, *range(1, rank - 1)])


def base_of(node: Node) -> Node:
    """The node whose memory a view of it, or a view of a view, is a window of."""
    while node.target in VIEWS:
        node = node.all_input_nodes[0]
    return node


def fake(node: Node) -> torch.Tensor | None:
    """The fake tensor that a node yields, if it yields exactly one."""
    value = node.meta.get("val")
    return value if isinstance(value, torch.Tensor) else None


def is_loop(node: Node) -> bool:
    """Whether a node becomes a loop, and no library call."""
    if not isinstance(node.target, OpOverload):
        return False
    return torch.Tag.pointwise in node.target.tags or operator_name(node.target) in _LOOPS


def readers(node: Node) -> Iterator[Node]:
    """The nodes that read a value or a view of it; what leaves the graph has no reader there."""
    for user in node.users:
        if user.target in VIEWS:
            yield from readers(user)
        elif user.op != "output":
            yield user


def sized(node: Node) -> torch.Tensor | None:
    """The fake tensor that a node yields, if its sizes are numbers: comparing symbolic ones would decide them."""
    value = fake(node)
    return value if value is not None and all(isinstance(n, int) for n in (*value.shape, *value.stride())) else None


def escaping(captured: Captured, *, kept: bool = False) -> set[Node]:
    """Nodes whose memory the user gets to see: visible outputs, and whatever those are views of.

    Outputs that are only copied into an input (mutations) are not seen themselves. With ``kept``, values that are kept
    for the backward graph count too: an input may change in between.
    """
    copied_back = {position for position, _ in captured.mutations}
    seen: set[Node] = set()
    for position, output in enumerate(captured.outputs):
        visible = kept or captured.visible is None or position in captured.visible
        if not isinstance(output, Node) or not visible or position in copied_back:
            continue
        node = output
        seen.add(node)
        while node.op == "call_function" and node.target in VIEWS:
            node = node.args[0]
            seen.add(node)
    return seen
