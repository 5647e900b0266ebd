"""A training step's joint graph, before it is split: the values that may be saved, and how it is split by a choice.

The backward half is what depends on a gradient of the step's results. Each other value that it reads is saved by the
forward graph, or computed in the backward graph from others that are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch.fx import GraphModule, Node

from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.graph.rewrite import VIEWS, base_of, copied, readers, with_graph
from optfuse.compiler.frontend.passes.draws import CHOSEN
from optfuse.compiler.frontend.torch_internals.torch_bridge import (
    OpOverload,
    extract_halves,
    is_mutating,
    is_random,
    is_tangent,
)
from optfuse.compiler.ir.collectives import COMMUNICATION

aten = torch.ops.aten

_NAME = "optfuse_joint_name"
#: Operators that write values at places, and add them up if they are told to; and those that overwrite in any case.
_PUTS = frozenset({aten.index_put.default, aten._unsafe_index_put.default, aten.put.default})  # noqa: SLF001
_OVERWRITING = frozenset({aten.scatter.src, aten.index_copy.default})


@dataclass(frozen=True, slots=True)
class JointValue:
    """What a node yields that depends on no gradient.

    Attributes:
        name: The node's.
        inputs: The nodes of this kind that it is computed from, by position; what the step is given is left out.
        in_forward, is_result: Whether the step's results need it, so that any forward graph computes it; whether it is
            a result of the backward graph.
        is_view, is_part: Whether it is a view of its one input, or of what the step is given; whether it is one of a
            tuple's values.
        bytes: Its size; None for a tuple or a number.
        elements: How many it has; 0 for a tuple or a number.
        repeatable: Whether it may be computed again: it draws no random number, writes nothing, talks to no other
            device, and is the same each time.
        backward_readers, readers: The names of the nodes of the backward half that read it, and of the others; of these
            also through views.
    """

    name: str
    inputs: tuple[int, ...]
    in_forward: bool
    is_result: bool
    is_view: bool
    is_part: bool
    bytes: int | None
    elements: int
    repeatable: bool
    backward_readers: tuple[str, ...]
    readers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """The names of the values that are saved, and of those that the backward graph recomputes."""

    saved: frozenset[str]
    again: frozenset[str]


@dataclass(frozen=True, slots=True)
class JointStep:
    """A training step that is not split yet.

    Attributes:
        name: The graphs' name, without ".forward".
        values: What depends on no gradient, in program order.
        backward: The names of the nodes of the backward half, in program order, each with those of this half that it
            reads.
        halves: Given a choice (None: torch's, the fewest bytes), the forward and the backward graph as ``adapt`` makes
            them.
        regions: How many regions the user has checkpointed. Where there are any, or torch is asked for a budget, the
            step is split as they say: there are no values to choose from, and ``free`` yields both graphs as torch
            would split them without.
    """

    name: str
    values: tuple[JointValue, ...]
    backward: Mapping[str, tuple[str, ...]]
    halves: Callable[[Choice | None], tuple[Captured, Captured]]
    regions: int = 0
    free: Callable[[], tuple[Captured, Captured]] | None = None


#: Decides what a training step saves; None leaves it to torch's minimum cut.
Chooser = Callable[[JointStep], Choice | None]


def has_own_choice(joint: GraphModule) -> bool:
    """Whether checkpointed regions or torch's memory budget already decide what is saved."""
    return any(not CHOSEN.isdisjoint(node.meta) for node in joint.graph.nodes)


def regions_of(joint: GraphModule) -> int:
    """How many regions the user has checkpointed."""
    return len({node.meta.get("ac_graph_id") for node in joint.graph.nodes if "recompute" in node.meta})


def without_own_choice(joint: GraphModule) -> GraphModule:
    """A copy of a joint graph in which the user has checkpointed nothing."""
    made = copied(joint)
    for node in made.graph.nodes:
        for mark in CHOSEN:
            node.meta.pop(mark, None)
    return made


def joint_values(joint: GraphModule, results: int) -> tuple[tuple[JointValue, ...], Mapping[str, tuple[str, ...]]]:
    """The values of a joint graph that depend on no gradient, and the nodes of the other, backward half.

    The graph's first ``results`` outputs are the step's results. What the step is given (parameters, inputs) is in
    memory at any time, so it is no value here.
    """
    outputs: Sequence[Any] = joint.graph.output_node().args[0]  # type: ignore[assignment]
    kept = {base for node in outputs[:results] if isinstance(node, Node) for base in (node, base_of(node))}
    forward = _needed_by(kept)
    backward = _backward_half(joint, forward)
    order = [node for node in joint.graph.nodes if node.op not in {"placeholder", "output"} and node not in backward]
    place = {node: k for k, node in enumerate(order)}
    asked = {node for node in outputs[results:] if isinstance(node, Node)}
    values = []
    for node in order:
        values.append(
            JointValue(
                node.name,
                tuple(place[source] for source in node.all_input_nodes if source in place),
                node in forward,
                node in asked,
                node.target in VIEWS,
                node.target is getitem and node.all_input_nodes[0] in place,
                _bytes(node),
                _elements(node),
                _is_repeatable(node),
                tuple(user.name for user in node.users if user in backward),
                tuple(user.name for user in readers(node) if user not in backward),
            )
        )
    ours = [node for node in joint.graph.nodes if node in backward]
    sources = {node.name: tuple(one.name for one in node.all_input_nodes if one in backward) for node in ours}
    return tuple(values), sources


def _needed_by(results: Iterable[Node]) -> set[Node]:
    """The nodes that compute ``results``, with every part of those that yield several values."""
    needed: set[Node] = set()
    ahead = list(results)
    while ahead:
        node = ahead.pop()
        if node not in needed and node.op != "placeholder":
            needed.add(node)
            ahead += node.all_input_nodes
            needed.update(user for user in node.users if user.target is getitem)
    return needed


def _backward_half(joint: GraphModule, forward: Collection[Node]) -> set[Node]:
    """The nodes that depend on a gradient of the results, or that no forward graph may compute."""
    found = {node for node in joint.graph.find_nodes(op="placeholder") if is_tangent(node)}
    for node in joint.graph.nodes:
        if node in forward or node.op in {"placeholder", "output"}:
            continue
        if not _is_repeatable(node) or any(source in found for source in node.all_input_nodes):
            found.add(node)
    return found


def cut_as_chosen(joint: GraphModule, choice: Choice, results: int) -> tuple[GraphModule, GraphModule]:
    """The forward and the backward graph of a joint one that save the values of a choice, and inputs of the step."""
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


def name_nodes(joint: GraphModule) -> None:
    """Note each node's name, which the passes hand on to the nodes that they put in its place: see ``joint_names``."""
    for node in joint.graph.nodes:
        node.meta[_NAME] = node.name


def joint_names(captured: Captured) -> dict[str, str]:
    """By node of the forward or backward graph, the name of the joint graph's node that it comes from."""
    return {node.name: node.meta.get(_NAME, node.name) for node in captured.graph.graph.nodes}


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


def _bytes(node: Node) -> int | None:
    value = node.meta.get("val")
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else None


def _elements(node: Node) -> int:
    value = node.meta.get("val")
    return value.numel() if isinstance(value, torch.Tensor) else 0


def _is_repeatable(node: Node) -> bool:
    if isinstance(node.target, OpOverload):
        own = is_mutating(node.target, node.kwargs) or (is_random(node.target) and _drops(node))
        return not (own or _leaves_open(node)) and node.target.namespace not in COMMUNICATION
    return node.target is getitem  # a body of control flow may do anything


def _leaves_open(node: Node) -> bool:
    """Whether a GPU may write one value or another where a place is named twice, not the same one each time.

    A single value is the same, and what is added up is, but for rounding.
    """
    if node.target in _PUTS:
        _, _, values, *rest = node.args
        adds = node.kwargs.get("accumulate", bool(rest and rest[0]))
        return not (adds or (isinstance(values, Node) and _elements(values) == 1))
    return node.target in _OVERWRITING


def _drops(node: Node) -> bool:
    """Whether an operator that may draw random numbers does: attention without dropout draws none."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]  # noqa: SLF001 - the schema has no other name
    named = {argument.name: value for argument, value in zip(schema, node.args, strict=False)}
    default = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    return bool({**default, **named, **node.kwargs}.get("dropout_p", 1.0) != 0.0)
