"""Remove nodes that change nothing: checks that hold, aliases, copies to the same layout, views to the same shape."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.graph.index_bounds import holds
from optfuse.compiler.frontend.graph.rewrite import (
    BY_PLACE,
    VIEWS,
    base_of,
    copied,
    escaping,
    fake,
    insert,
    sized,
    swap,
    with_graph,
)
from optfuse.compiler.frontend.torch_internals.torch_bridge import TO_COPY, is_mutating
from optfuse.compiler.frontend.torch_internals.torch_sizes import known_equal, same_numbers

aten = torch.ops.aten

#: Checks of sizes and dtypes, which tracing has made.
ASSERTIONS = frozenset(
    getattr(getattr(aten, name), overload)
    for name in (
        "_assert_tensor_metadata",
        "_assert_scalar",
        "sym_constrain_range",
        "sym_constrain_range_for_size",
    )
    for overload in getattr(aten, name).overloads()
)
#: Checks of a tensor's values.
_VALUES = frozenset({aten._assert_async.default, aten._assert_async.msg})  # noqa: SLF001

_ALIASES = frozenset({aten.alias.default, aten.detach.default, aten.lift_fresh.default, aten.lift.default})
_COPIES = frozenset({aten.clone.default, TO_COPY, aten.lift_fresh_copy.default, aten.constant_pad_nd.default})
_RESHAPES = frozenset(
    {
        aten.view.default,
        aten.expand.default,
        aten.slice.Tensor,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.as_strided.default,
    }
)


def drop_assertions(captured: Captured) -> Captured:
    """The graph without checks that hold: of sizes, of dtypes, and of indices that are known to be in range.

    Before: ``_assert_tensor_metadata(x, ...); y = relu(x)``. After: ``y = relu(x)``. A check of other values stays, as
    a library call.
    """
    graph = copied(captured.graph)
    for node in list(graph.graph.nodes):
        if node.op != "call_function" or node.users:
            continue
        if node.target in ASSERTIONS or (node.target in _VALUES and holds(node.args[0])):
            graph.graph.erase_node(node)
    return with_graph(captured, graph)


def remove_noops(captured: Captured) -> Captured:
    """The graph with copies in the same layout and views of the same shape replaced by their source.

    Before: ``b = _to_copy(a, dtype=a.dtype); c = view(b, b.shape); relu(c)``. After: ``relu(a)``.
    A copy that leaves the graph stays: its source may be an input, and either may be written into. One that is kept for
    a backward graph may be its source, where that is a value of the graph's own that the user does not get to see.
    """
    graph = copied(captured.graph)
    working = with_graph(captured, graph)
    seen, shown = escaping(working, kept=True), escaping(working)
    for node in list(graph.graph.nodes):
        if node.op != "call_function" or _moves_places(node):
            continue
        if node.target in _ALIASES or (node.target in _RESHAPES and _same_layout(node)):
            if node in seen:
                seen.add(node.args[0])
            swap(node, node.args[0])
        elif node.target in _COPIES and _same_layout(node) and _copies_all(node):
            if node not in seen or (node not in shown and _is_hidden(node.args[0], shown)):
                swap(node, node.args[0])
        elif node.target is aten.permute.default and list(node.args[1]) == list(range(len(node.args[1]))):
            if node in seen:
                seen.add(node.args[0])
            swap(node, node.args[0])
        elif node.target is aten.scalar_tensor.default:
            _scalar_to_full(node)
    return with_graph(working, graph)


def drop_copies(joint: GraphModule) -> None:
    """Replace equal copies by their source before the choice of what is saved. Changes ``joint``.

    Before: ``y = relu(x); d = clone(y); le(y, 0); mm(d, w)``, where dropout of nothing made the clone: y would be read
    for the mask, and d saved. After: ``mm(y, w)``. Copies that leave the graph, or whose source does, stay, and those
    of what the step is given.
    """
    seen = {one for node in joint.graph.output_node().all_input_nodes for one in (node, base_of(node))}
    for node in list(joint.graph.nodes):
        if node.target not in _COPIES or sized(node) is None or sized(node.args[0]) is None:
            continue
        if not _same_layout(node) or not _copies_all(node) or _moves_places(node):
            continue
        source = node.args[0]
        written = any(is_mutating(user.target, user.kwargs) for one in (node, source) for user in one.users)
        if node not in seen and _is_hidden(source, seen) and not written:
            swap(node, source)
    joint.recompile()


def _moves_places(node: Node) -> bool:
    """Whether as_strided counts places in a copy's own memory, which begin elsewhere in its source's."""
    source = node.args[0] if node.args and node.target in _COPIES else None
    ours, theirs = fake(node), fake(source) if isinstance(source, Node) else None
    if ours is None or theirs is None or ours.storage_offset() == theirs.storage_offset():
        return False
    stack = [node]
    while stack:
        for user in stack.pop().users:
            if user.target in BY_PLACE:
                return True
            stack += [user] if user.target in VIEWS else []
    return False


def _copies_all(node: Node) -> bool:
    """Whether every element stays where it is: not so where padding adds at one end what it takes at the other."""
    return node.target is not aten.constant_pad_nd.default or not any(node.args[1])


def _is_hidden(source: Node, shown: set[Node]) -> bool:
    """Whether a value has memory of its own that only this graph and the backward graph know."""
    return source.op == "call_function" and source.target not in VIEWS and source not in shown


def _scalar_to_full(node: Node) -> None:
    """One spelling of a constant: ``scalar_tensor(v)`` is ``full([], v)``."""
    kwargs = {"dtype": node.meta["val"].dtype, "device": node.meta["val"].device}
    swap(node, insert(node.graph, node, aten.full.default, ([], node.args[0]), kwargs))


def _same_layout(node: Node) -> bool:
    """Whether a node's value has its source's shape, strides, offset, dtype and device."""
    source = node.args[0]
    ours, theirs = fake(node), fake(source) if isinstance(source, Node) else None
    if ours is None or theirs is None:
        return False
    return (
        ours.dtype == theirs.dtype
        and ours.device == theirs.device
        and same_numbers(ours.shape, theirs.shape)
        and same_numbers(_strides(ours), _strides(theirs))
        and (node.target is not aten.as_strided.default or known_equal(ours.storage_offset(), theirs.storage_offset()))
    )


def _strides(value: torch.Tensor) -> tuple[int, ...]:
    """Strides of the axes that have more than one element."""
    return tuple(stride for stride, size in zip(value.stride(), value.shape, strict=True) if size > 1)
