"""Move arithmetic on numbers in the host's memory into the kernels that read its results, and batch the rest.

A function over lists that is given step counts on the host (an optimizer's bias corrections) computes a dozen numbers
for each tensor there, a call each. Kernels read the counts themselves and compute these.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.graph.rewrite import copied, fake, insert, swap, with_graph
from optfuse.compiler.frontend.torch_internals.torch_bridge import OpOverload

aten = torch.ops.aten

#: Arithmetic that is loops, whatever its operands are.
_ARITHMETIC = frozenset(
    {
        *(
            getattr(getattr(aten, name), of)
            for name in ("add", "sub", "mul", "div", "rsub")
            for of in ("Tensor", "Scalar")
        ),
        aten.pow.Scalar,
        aten.pow.Tensor_Scalar,
        aten.pow.Tensor_Tensor,
        aten.neg.default,
        aten.sqrt.default,
        aten.rsqrt.default,
        aten.reciprocal.default,
    }
)
_DTYPES = (torch.float32, torch.float64, torch.int64)


def compute_host_numbers_on_device(captured: Captured) -> Captured:
    """The graph with host numbers that only kernels read computed on the device, and the other sums in one call.

    Before: ``s1 = add(s, 1); c = pow(0.9, s1); p1 = div(p, c)``, with ``s1`` returned. After: ``there = add(s, 1); c =
    pow(0.9, there); p1 = div(p, c); [s1] = _foreach_add([s], 1)``, of which ``there`` and ``c`` are on p's device.
    """
    values = [fake(node) for node in captured.graph.graph.nodes]
    devices = {value.device for value in values if value is not None and value.device.type != "cpu"}
    if len(devices) != 1 or not any(_is_computed(node) for node in captured.graph.graph.nodes):
        return captured
    graph, (device,) = copied(captured.graph), devices
    there: dict[Node, Node] = {}
    for node in list(graph.graph.nodes):
        value = fake(node)
        if value is None or value.device != device or not _reads_numbers(node, value.dtype):
            continue
        for operand in node.all_input_nodes:
            if _is_computed(operand):
                node.replace_input_with(operand, _there(graph.graph, operand, node, device, there))
    found = with_graph(captured, graph)
    _add_together(found.graph.graph)
    found.graph.recompile()
    return found


def _number(node: Node) -> torch.Tensor | None:
    """The fake value of a number in the host's memory."""
    value = fake(node)
    known = value is not None and value.dim() == 0 and value.device.type == "cpu" and value.dtype in _DTYPES
    return value if known else None


def _is_computed(node: Node) -> bool:
    """Whether a node is arithmetic on the host's numbers alone."""
    return node.target in _ARITHMETIC and _number(node) is not None and None not in map(_number, node.all_input_nodes)


def _reads_numbers(node: Node, dtype: torch.dtype) -> bool:
    """Whether a node on the device is a loop that takes a number of its own device as it takes one of the host's."""
    pointwise = isinstance(node.target, OpOverload) and torch.Tag.pointwise in node.target.tags
    return pointwise and not (dtype.is_floating_point and dtype.itemsize < 4)


def _there(graph: Graph, node: Node, before: Node, device: torch.device, there: dict[Node, Node]) -> Node:
    """The number that a node computes on the host, computed on the device."""
    if not _is_computed(node):
        return node
    if node not in there:
        operands = {operand: _there(graph, operand, before, device, there) for operand in node.all_input_nodes}
        with graph.inserting_before(before):
            made = graph.node_copy(node, lambda operand: operands[operand])
        value: Any = node.meta["val"]
        made.meta = {**node.meta, "val": value.new_empty((), device=device)}
        there[node] = made
    return there[node]


def _add_together(graph: Graph) -> None:
    """One call for all numbers of the host to which the same is added: step counts."""
    alike: dict[tuple[Any, ...], list[Node]] = {}
    for node in graph.nodes:
        if node.target in (aten.add.Tensor, aten.add.Scalar) and len(node.args) == 2 and not node.kwargs:
            term, more = node.args
            given = isinstance(term, Node) and term.op == "placeholder" and _number(term) is not None
            if given and isinstance(more, (int, float)) and _number(node) is not None:
                alike.setdefault((more, node.meta["val"].dtype), []).append(node)
    for (more, _), nodes in alike.items():
        if len(nodes) > 1:
            first = nodes[0]
            with graph.inserting_before(first):
                sums = graph.call_function(aten._foreach_add.Scalar, ([node.args[0] for node in nodes], more))  # noqa: SLF001
            sums.meta = {**first.meta, "val": [node.meta["val"] for node in nodes]}
            parts = [insert(graph, first, operator.getitem, (sums, k)) for k in range(len(nodes))]
            for node, part in zip(nodes, parts, strict=True):
                swap(node, part)
