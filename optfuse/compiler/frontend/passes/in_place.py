"""Update parts of a tensor in place: a cache is not copied to write one of its rows.

AOTAutograd hands over ``new = index_copy(cache, ...)`` and, at the end, the copy of ``new`` into ``cache``. Where every
reader of the old value can come first, and the caller sees the new value in ``cache`` alone, the operator that writes
in place does the same, and no copy is left. A tensor that the graph itself has made is written in place likewise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from optfuse.compiler.frontend.calls.flat import same_form
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.graph.rewrite import VIEWS, copied, fake, insert, with_graph
from optfuse.compiler.frontend.torch_internals.torch_bridge import OpOverload, is_mutating, operator_name
from optfuse.compiler.frontend.torch_internals.torch_sizes import hint_of

aten = torch.ops.aten

#: Operators that return their first argument with some places changed, and those that change it in place.
IN_PLACE = {
    aten.index_copy.default: aten.index_copy_.default,
    aten.index_put.default: aten.index_put_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.index_fill.int_Scalar: aten.index_fill_.int_Scalar,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.scatter_reduce.two: aten.scatter_reduce_.two,
    aten.masked_scatter.default: aten.masked_scatter_.default,
}

#: Operators that return their first argument with a window replaced by the second, and the view that is the window.
WINDOWS = {aten.slice_scatter.default: aten.slice.Tensor, aten.select_scatter.default: aten.select.int}

#: Updates that are loops: of a tensor of fewer bytes they stay as they are, since a loop that writes all of it costs no
#: more than a call.
LOOPS = frozenset({*WINDOWS, aten.scatter.src, aten.scatter.value})
LEAST_BYTES = 1 << 16


def update_in_place(captured: Captured) -> Captured:
    """The same graph with updates in place where the old value is not needed any more.

    Before: ``new = index_copy(cache, 1, place, row); return (..., new)``. After: ``index_copy_(cache, 1, place, row)``.
    """
    if not any(node.target in IN_PLACE or node.target in WINDOWS for node in captured.graph.graph.nodes):
        return captured
    graph = copied(captured.graph)
    nodes = list(graph.graph.nodes)
    renewed = _renewed(captured, graph)
    seen = _returned(captured, graph)
    first: dict[Node, set[Node]] = {}  # nodes that must come before a node, beside its arguments
    changed = False
    for node in nodes:
        base = node.args[0] if node.args else None
        if not (node.target in IN_PLACE or node.target in WINDOWS) or not isinstance(base, Node):
            continue
        if not _owned(base, renewed.get(node)) or not _fits(node, base):
            continue
        if not set(_operands(node)).isdisjoint(_aliases(base, node)):
            continue  # it reads the tensor that it would write
        readers = {reader for alias in _aliases(base, node) for reader in alias.users} - {node}
        readers = {reader for reader in readers if reader.target not in VIEWS}
        new = set(_aliases(node, None))
        if new & seen or any(alias in seen for alias in _aliases(base, node)) or _after(node, first) & readers:
            continue
        first.setdefault(node, set()).update(readers)
        changed = True
    if not changed:
        return captured
    _reorder(graph, first)
    for node in first:
        _write(graph, node)
    return with_graph(captured, graph)


def _renewed(captured: Captured, graph: GraphModule) -> dict[Node, Node]:
    """The nodes that lead to an input's new value through updates alone, with that input."""
    placeholders = graph.graph.find_nodes(op="placeholder")
    outputs = graph.graph.output_node().args[0]
    found: dict[Node, Node] = {}
    for position, target in captured.mutations:
        chain: list[Node] = []
        node = outputs[position]  # type: ignore[index]
        while isinstance(node, Node) and (node.target in IN_PLACE or node.target in WINDOWS):
            chain.append(node)
            node = node.args[0]
        if node is placeholders[target]:
            found.update((update, placeholders[target]) for update in chain)
    return found


def _returned(captured: Captured, graph: GraphModule) -> set[Node]:
    """What leaves the graph otherwise than as an input's new value."""
    renewing = {position for position, _ in captured.mutations}
    outputs: Sequence[object] = graph.graph.output_node().args[0]  # type: ignore[assignment]
    return {node for k, node in enumerate(outputs) if isinstance(node, Node) and k not in renewing}


def _owned(base: Node, input_renewed: Node | None) -> bool:
    """Whether the memory of ``base`` may be written: an input's that gets the new value, or a value's of the graph."""
    if input_renewed is not None:
        return True
    if base.op != "call_function" or not isinstance(base.target, OpOverload) or base.target in VIEWS:
        return False
    own = not is_mutating(base.target, base.kwargs) and not base.target.is_view
    return own and operator_name(base.target) not in ("full", "reshape", "contiguous", "_unsafe_view")


def _fits(node: Node, base: Node) -> bool:
    """Whether the update writes values of the tensor's own dtype into a tensor that is large and does not overlap."""
    value, update = fake(base), node.args[1] if node.target in WINDOWS else None
    if value is None or not same_form(node, base):
        return False
    if node.target in LOOPS and hint_of(value.numel()) * value.itemsize < LEAST_BYTES:
        return False
    if any(step == 0 and size > 1 for size, step in zip(value.shape, value.stride(), strict=True)):
        return False
    source = fake(update) if isinstance(update, Node) else None
    return node.target not in WINDOWS or (source is not None and source.dtype == value.dtype)


def _operands(node: Node) -> list[Node]:
    """What an update reads beside the tensor that it changes."""
    return [x for x in pytree.tree_leaves((node.args[1:], node.kwargs)) if isinstance(x, Node)]


def _aliases(node: Node, apart_from: Node | None) -> Iterable[Node]:
    """A node and the views of it."""
    found, stack = [], [node]
    while stack:
        alias = stack.pop()
        found.append(alias)
        stack += [
            user for user in alias.users if user.target in VIEWS and user.args[0] is alias and user is not apart_from
        ]
    return found


def _after(node: Node, first: dict[Node, set[Node]]) -> set[Node]:
    """What must come after a node."""
    later: dict[Node, list[Node]] = {}
    for update, before in first.items():
        for reader in before:
            later.setdefault(reader, []).append(update)
    found: set[Node] = set()
    stack = [node]
    while stack:
        for user in (*stack[-1].users, *later.get(stack.pop(), ())):
            if user not in found:
                found.add(user)
                stack.append(user)
    return found


def _reorder(graph: GraphModule, first: dict[Node, set[Node]]) -> None:
    """Put every node behind what must come before it, and otherwise leave the order as it is."""
    order: dict[Node, None] = {}
    for node in list(graph.graph.nodes):
        stack = [node]
        while stack:
            waiting = [n for n in (*stack[-1].all_input_nodes, *first.get(stack[-1], ())) if n not in order]
            if waiting:
                stack += waiting
            else:
                order[stack.pop()] = None
    last = None
    for node in order:
        if last is not None:
            last.append(node)
        last = node


def _write(graph: GraphModule, node: Node) -> None:
    """Replace an update by the operator that writes in place; what read its value reads the tensor, from then on."""
    base = node.args[0]
    assert isinstance(base, Node), "an update changes a tensor"
    if node.target in IN_PLACE:
        node.target = IN_PLACE[node.target]
    else:
        window = insert(graph.graph, node, WINDOWS[node.target], (base, *node.args[2:]), node.kwargs)
        insert(graph.graph, node, aten.copy_.default, (window, node.args[1]))
    node.replace_all_uses_with(base, delete_user_cb=lambda user: user is not node)
    if node.target not in IN_PLACE.values():
        graph.graph.erase_node(node)
