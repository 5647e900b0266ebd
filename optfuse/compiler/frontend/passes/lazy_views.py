"""Replace lazy negation and conjugation (views with a bit set) by the operators that compute them."""

from __future__ import annotations

import torch
from torch.fx import Node

from optfuse.compiler.frontend.captured import Captured
from optfuse.compiler.frontend.passes.rewrite import copied, insert, swap, with_graph

aten = torch.ops.aten

#: Views with a bit that turns what is read, and the operators that turn the elements themselves.
_ELEMENTWISE = {
    aten._neg_view.default: aten.neg.default,  # noqa: SLF001 - the name of an operator
    aten._conj.default: aten._conj_physical.default,  # noqa: SLF001
}


def materialize_lazy_views(captured: Captured) -> Captured:
    """The graph with lazy negation and conjugation computed, so that no tensor carries a negative or conjugate bit.

    Before: ``b = _neg_view(a); add(b, 1)``. After: ``b = neg(a); add(b, 1)``. A kernel reads memory and knows no bits.
    """
    graph = copied(captured.graph)
    for node in list(graph.graph.nodes):
        target = _ELEMENTWISE.get(node.target)
        if target is not None and isinstance(node.args[0], Node):  # torch conjugates complex numbers by it too
            swap(node, insert(graph.graph, node, target, node.args))
    return with_graph(captured, graph)
