"""A training step's joint graph, before it is split: what its forward half computes, and how it is split by a choice.

The forward half is what the step's results need; the rest is the backward half. Each value of the former that the
latter reads is saved, or computed again there from others that are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch.fx import GraphModule, Node

from optfuse.compiler.frontend.captured import Captured
from optfuse.compiler.frontend.passes.rewrite import VIEWS, copied, with_graph
from optfuse.compiler.frontend.torch_bridge import (
    OpOverload,
    extract_halves,
    is_mutating,
    is_random,
    is_tangent,
)

_COLLECTIVES = frozenset({"_c10d_functional", "c10d_functional", "_dtensor"})


@dataclass(frozen=True, slots=True)
class JointValue:
    """What a node of the forward half yields.

    Attributes
    ----------
    name
        The node's.
    inputs
        The nodes of the forward half that it is computed from, by position; what the step is given is left out.
    bytes
        Its size; 0 for a result of the step, which stays in memory; None if it cannot be saved: a tuple, a view, a
        number.
    repeatable
        Whether it may be computed again: it draws no random number, writes nothing and talks to no other device.
    readers, forward_readers
        The names of the nodes of the backward and of the forward half that read it, also through views.
    """

    name: str
    inputs: tuple[int, ...]
    bytes: int | None
    repeatable: bool
    readers: tuple[str, ...]
    forward_readers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """The names of values that are saved, and of values that the backward graph computes again."""

    saved: frozenset[str]
    again: frozenset[str]


@dataclass(frozen=True, slots=True)
class JointStep:
    """A training step that is not split yet.

    Attributes
    ----------
    name
        The graphs' name, without ".forward".
    values
        What the forward half computes, in program order.
    needed
        Positions of the values that the backward half reads.
    halves
        Given a choice (None: torch's, the fewest bytes), the forward and the backward graph as ``adapt`` makes them.
    """

    name: str
    values: tuple[JointValue, ...]
    needed: frozenset[int]
    halves: Callable[[Choice | None], tuple[Captured, Captured]]


#: Decides what a training step saves; None leaves it to torch's minimum cut.
Chooser = Callable[[JointStep], Choice | None]


def has_own_choice(joint: GraphModule) -> bool:
    """Whether the user has checkpointed regions, or asked torch for a budget: then torch splits as they say."""
    return any("recompute" in node.meta or "memory_budget" in node.meta for node in joint.graph.nodes)


def joint_values(joint: GraphModule, results: int) -> tuple[tuple[JointValue, ...], frozenset[int]]:
    """The values of the forward half of a joint graph whose first ``results`` outputs are the step's, and the needed.

    What the step is given (parameters, inputs) is in memory at any time, so it is no value here.
    """
    outputs: Sequence[Any] = joint.graph.output_node().args[0]  # type: ignore[assignment]
    kept = {base for node in outputs[:results] if isinstance(node, Node) for base in (node, base_of(node))}
    forward: set[Node] = set()
    for node in reversed(list(joint.graph.nodes)):
        if node.op not in {"placeholder", "output"} and (node in kept or any(user in forward for user in node.users)):
            forward.add(node)
            forward.update(user for user in node.users if user.target is getitem)
    order = [node for node in joint.graph.nodes if node in forward]
    place = {node: k for k, node in enumerate(order)}
    asked = {node for node in outputs[results:] if isinstance(node, Node)}
    values, needed = [], set()
    for k, node in enumerate(order):
        if node in asked or any(user not in forward and user.op != "output" for user in node.users):
            needed.add(k)
        readers = list(_readers(node))
        values.append(
            JointValue(
                node.name,
                tuple(place[source] for source in node.all_input_nodes if source in place),
                _bytes(node, kept),
                _is_repeatable(node),
                tuple(user.name for user in readers if user not in forward),
                tuple(user.name for user in readers if user in forward),
            )
        )
    return tuple(values), frozenset(needed)


def cut_as_chosen(joint: GraphModule, choice: Choice, results: int) -> tuple[GraphModule, GraphModule]:
    """The forward and the backward graph of a joint one that save what a choice says, and what the step was given."""
    outputs: Sequence[Any] = joint.graph.output_node().args[0]  # type: ignore[assignment]
    reached: set[Node] = set()
    ahead = [node for node in outputs[results:] if isinstance(node, Node)]
    while ahead:
        node = ahead.pop()
        if node not in reached:
            reached.add(node)
            ahead += () if node.name in choice.saved else node.all_input_nodes
    given = {node for node in reached if node.op == "placeholder" and not is_tangent(node)}
    saved = [node for node in joint.graph.nodes if node in given or (node in reached and node.name in choice.saved)]
    return extract_halves(joint, saved, results)


def saved_names(forward: Captured) -> tuple[str, ...]:
    """The names of what a forward graph hands to its backward graph, what it was given among them."""
    visible = forward.visible or frozenset()
    written = {position for position, _ in forward.mutations}
    return tuple(
        node.name
        for k, node in enumerate(forward.outputs)
        if isinstance(node, Node) and k not in visible and k not in written
    )


def results_alone(forward: Captured) -> Captured:
    """A forward graph that computes its results and new values of what it writes, and saves nothing."""
    graph = copied(forward.graph)
    output = graph.graph.output_node()
    wanted = (forward.visible or frozenset()) | {position for position, _ in forward.mutations}
    output.args = (tuple(value if k in wanted else None for k, value in enumerate(forward_outputs(graph))),)
    return with_graph(forward, graph)


def forward_outputs(graph: GraphModule) -> Sequence[Any]:
    """The outputs of a graph, in order."""
    return graph.graph.output_node().args[0]  # type: ignore[return-value]


def base_of(node: Node) -> Node:
    """The node whose memory a view of it, or a view of a view, is a window of."""
    while node.target in VIEWS:
        node = node.all_input_nodes[0]
    return node


def _readers(node: Node) -> Iterator[Node]:
    for user in node.users:
        if user.target in VIEWS:
            yield from _readers(user)
        elif user.op != "output":
            yield user


def _bytes(node: Node, kept: Collection[Node]) -> int | None:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or node.target in VIEWS:
        return None
    return 0 if node in kept else value.numel() * value.element_size()


def _is_repeatable(node: Node) -> bool:
    if isinstance(node.target, OpOverload):
        own = is_mutating(node.target, node.kwargs) or (is_random(node.target) and _drops(node))
        return not own and node.target.namespace not in _COLLECTIVES
    return node.target is getitem  # a body of control flow may do anything


def _drops(node: Node) -> bool:
    """Whether an operator that may draw random numbers does: attention without dropout draws none."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]  # noqa: SLF001 - the schema has no other name
    named = {argument.name: value for argument, value in zip(schema, node.args, strict=False)}
    default = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    return bool({**default, **named, **node.kwargs}.get("dropout_p", 1.0) != 0.0)
