"""Expand the element that a tensor is filled with, instead of reading it as a number, for which the host would wait."""

from __future__ import annotations

import torch
from torch.fx import Node

from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.graph.rewrite import copied, insert, swap, with_graph

aten = torch.ops.aten

_ITEM = aten._local_scalar_dense.default  # noqa: SLF001 - the name of an operator


def expand_items(captured: Captured) -> Captured:
    """The graph with ``full(..., x.item())`` replaced by an expansion of ``x``.

    Before: ``a = _local_scalar_dense(t); b = full([6400, 1], a)``. After: ``b = clone(expand(t, [6400, 1]))``.
    """
    graph = copied(captured.graph)
    for node in list(graph.graph.find_nodes(op="call_function", target=aten.full.default)):
        size, item, made = node.args[0], node.args[1], node.meta["val"]
        if not isinstance(item, Node) or item.target is not _ITEM or not isinstance(item.args[0], Node):
            continue
        value = insert(graph.graph, node, aten.view.default, (item.args[0], []))
        options = {"dtype": made.dtype, "device": made.device}
        value = insert(graph.graph, node, aten._to_copy.default, (value,), options)  # noqa: SLF001
        value = insert(graph.graph, node, aten.expand.default, (value, size))
        swap(node, insert(graph.graph, node, aten.clone.default, (value,), {"memory_format": torch.contiguous_format}))
    return with_graph(captured, graph)
