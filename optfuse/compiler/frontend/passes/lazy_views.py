"""Replace lazy negation and conjugation (views with a bit set) by the operators that compute them."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.graph.rewrite import VIEWS, copied, insert, swap, with_graph
from optfuse.compiler.frontend.torch_internals.torch_fakes import fake_result

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
    _materialize(graph)
    return with_graph(captured, graph)


def save_no_lazy_views(joint: GraphModule) -> None:
    """The same before the choice of what is saved, where there is conjugation: the backward graph gets the numbers.

    Before: a backward graph that gets ``_conj(a)`` as a value that may have the bit. After: one that gets ``a``, or
    numbers that have been conjugated. Changes ``joint``.
    """
    if joint.graph.find_nodes(op="call_function", target=aten._conj.default):  # noqa: SLF001
        _materialize(joint)
        joint.recompile()


def _materialize(graph: GraphModule) -> None:
    changed: set[Node] = set()
    for node in list(graph.graph.nodes):
        target = _ELEMENTWISE.get(node.target)
        if target is not None and isinstance(node.args[0], Node):  # torch conjugates complex numbers by it too
            made = insert(graph.graph, node, target, node.args)
            changed.add(made)
            swap(node, made)
        elif node.target in VIEWS and node.args[0] in changed:
            node.meta["val"] = fake_result(node.target, node.args, node.kwargs)
            changed.add(node)
