"""Recompute values in the backward graph that expand a small number of elements, instead of saving them.

Torch's partition keeps what a library call of the backward graph reads, since that would have to be in memory anyway.
But a mask of attention, a bias and a window's mask added and repeated for 4096 windows, takes 67 MB from the forward to
the backward pass, and what it is made of 0.3. Nor are constants kept that both graphs happen to start from, such as the
zeros that a graph network's messages are added to: in the backward graph they would be values that nothing is known of.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch.fx import GraphModule, Node

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from optfuse.compiler.frontend.graph.rewrite import VIEWS, fake, sized
from optfuse.compiler.frontend.torch_internals.torch_bridge import OpOverload, is_mutating, is_random, operator_name

aten = torch.ops.aten

#: Smaller values are left, and those that are not at least so many times as large as what they are made of.
LEAST_BYTES = 1 << 20
LEAST_RATIO = 8
#: Operators that are run again for one value, at most.
MOST_NODES = 24

_SPREADING = VIEWS | {
    aten._to_copy.default,  # noqa: SLF001 - the operator's name
    aten._unsafe_view.default,  # noqa: SLF001
    aten.clone.default,
    aten.constant_pad_nd.default,
}


#: What makes tensors of nothing.
_CONSTANTS = frozenset(
    {aten.full.default, aten.arange.default, aten.arange.start, aten.arange.start_step, aten.scalar_tensor.default}
)

#: Attention's own padding of a mask's rows.
_PADDED = operator_name(torch.ops.optfuse.padded_rows.default)


@dataclass(frozen=True, slots=True)
class Recipe:
    """The small values that something is made of, and the nodes that make it of them, in their order."""

    sources: tuple[Node, ...]
    nodes: tuple[Node, ...]


def recompute_expanded(forward: GraphModule, backward: GraphModule, first: int) -> None:
    """Change the two graphs of a partition in place. ``first``: the first output of ``forward`` that is kept."""
    out = forward.graph.output_node()
    outputs: list[Node] = list(out.args[0])
    kept, given = outputs[first:], backward.graph.find_nodes(op="placeholder")
    matched = all(isinstance(x, Node) and x.name == p.name for x, p in zip(kept, given, strict=False))
    if not matched or len(given) < len(kept) or any(x.meta.get("saved_tensor_with_no_vc_check") for x in kept):
        return  # sizes that are kept, too, or an order that torch has reasons for
    order = {node: k for k, node in enumerate(forward.graph.nodes)}
    names = {node.name for node in backward.graph.nodes}
    places = dict(zip(kept, given, strict=False))
    facts = dict(zip(outputs, out.meta.get("desc", ()), strict=False))
    for node in kept:
        recipe = _recipe(node, order)
        if recipe is None or any(source not in places and source.name in names for source in recipe.sources):
            continue
        old = places.pop(node)
        for source in recipe.sources:
            if source not in places:
                with backward.graph.inserting_before(old):
                    places[source] = backward.graph.placeholder(source.name)
                places[source].meta = {**source.meta, **{key: old.meta[key] for key in ("desc",) if key in old.meta}}
                names.add(source.name)
                facts.setdefault(source, facts.get(node))
        _spread_again(backward, recipe, old, places)
    if list(places) == kept:
        return
    # the order of the placeholders is that of the outputs
    by_place = {place: node for node, place in places.items()}
    now = [by_place[p] for p in backward.graph.find_nodes(op="placeholder") if p in by_place]
    out.args = ((*outputs[:first], *now),)
    if "desc" in out.meta:
        out.meta["desc"] = [*out.meta["desc"][:first], *(facts[node] for node in now)]
    for graph in (forward, backward):
        graph.graph.eliminate_dead_code()
        graph.graph.lint()
        graph.recompile()


def _recipe(node: Node, order: dict[Node, int]) -> Recipe | None:
    """What a value is made of, if that is small and the operators in between only spread it; None if not.

    A constant is made of nothing, by whatever operators.
    """
    constant = _made_of_nothing(node)
    if constant is not None:
        return Recipe((), tuple(sorted(constant, key=order.__getitem__)))
    value = sized(node)
    if value is None or _bytes(value) < LEAST_BYTES:
        return None
    sources: set[Node] = set()
    nodes: set[Node] = set()
    stack = [node]
    while stack:
        top = stack.pop()
        found = sized(top)
        if top in sources or top in nodes:
            continue
        if found is not None and _bytes(found) * LEAST_RATIO <= _bytes(value):
            sources.add(top)
        elif found is not None and _spreads(top) and len(nodes) < MOST_NODES:
            nodes.add(top)
            stack.extend(top.all_input_nodes)
        else:
            return None
    small = sum(_bytes(fake(source)) for source in sources) * LEAST_RATIO <= _bytes(value)
    if not small or any(_written(source) for source in sources):
        return None
    return Recipe(tuple(sorted(sources, key=order.__getitem__)), tuple(sorted(nodes, key=order.__getitem__)))


def _made_of_nothing(node: Node) -> set[Node] | None:
    """The nodes that make a value of constants alone; None if there are many, or if anything else takes part."""
    found: set[Node] = set()
    stack = [node]
    while stack:
        top = stack.pop()
        if top in found:
            continue
        plain = isinstance(top.target, OpOverload) and not is_random(top.target) and not is_mutating(top.target)
        root = not top.all_input_nodes
        if (
            top.op != "call_function"
            or not plain
            or len(found) == MOST_NODES
            or (root and top.target not in _CONSTANTS)
        ):
            return None
        found.add(top)
        stack.extend(top.all_input_nodes)
    return found


def _bytes(value: torch.Tensor) -> int:
    """Of its elements. A tensor that ever had symbolic sizes does not say so itself."""
    return prod(int(n) for n in value.shape) * value.element_size()


def _spreads(node: Node) -> bool:
    target = node.target
    if node.op != "call_function" or not isinstance(target, OpOverload) or is_random(target) or is_mutating(target):
        return False
    return target in _SPREADING or torch.Tag.pointwise in target.tags or operator_name(target) == _PADDED


def _written(source: Node) -> bool:
    """Whether a node writes into a value later: then it is not what it was when the backward graph reads it."""
    return any(is_mutating(user.target, user.kwargs) for user in source.users)


def _spread_again(backward: GraphModule, recipe: Recipe, old: Node, places: dict[Node, Node]) -> None:
    """Make a value from its sources just before it is first used; ``old``, which brought it so far, goes."""
    user = next(node for node in backward.graph.nodes if node in old.users)
    made = {source: places[source] for source in recipe.sources}
    with backward.graph.inserting_before(user):
        for node in recipe.nodes:
            made[node] = backward.graph.node_copy(node, made.__getitem__)
    old.replace_all_uses_with(made[recipe.nodes[-1]])
    backward.graph.erase_node(old)
