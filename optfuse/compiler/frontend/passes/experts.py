"""Rewrite grouped matmuls of few rows and many experts as sums over the weights of each row's expert."""

from __future__ import annotations

import torch
from torch.fx import Node

from optfuse.compiler.frontend.captured import Captured
from optfuse.compiler.frontend.passes.rewrite import copied, fake, insert, swap, with_graph
from optfuse.compiler.frontend.torch_bridge import TO_COPY

aten = torch.ops.aten

_GROUPED = aten._grouped_mm.default  # noqa: SLF001 - the operator has no public name

#: A row in so many experts, at most, is worth loops: each row reads its expert's weights by itself.
LEAST_EXPERTS_A_ROW = 2


def sum_over_experts(captured: Captured) -> Captured:
    """The graph with grouped matmuls of fewer rows than half the experts as loops that look up each row's expert.

    Before: ``_grouped_mm(x, w, ends)`` with x (T, K), w (E, K, N) and the end of each expert's rows. After:
    ``e = (ends <= arange(T)).sum(); (w[e].float() * x.float()).sum(over K)``. A library's kernel starts a program for
    each expert and has tiles that are nearly empty.
    """
    graph = copied(captured.graph)
    for node in list(graph.graph.nodes):
        if node.target is _GROUPED and _is_sparse(node):
            _replace(node)
    return with_graph(captured, graph)


def _is_sparse(node: Node) -> bool:
    """Whether few rows are each multiplied by one matrix of many, whose sums run along its rows in memory."""
    if node.kwargs or len(node.args) != 3 or not all(isinstance(arg, Node) for arg in node.args):
        return False
    x, weights, ends = (fake(arg) for arg in node.args)
    result = fake(node)
    if x is None or weights is None or ends is None or result is None or (x.dim(), weights.dim()) != (2, 3):
        return False
    few = 0 < x.shape[0] * LEAST_EXPERTS_A_ROW <= weights.shape[0]
    return few and weights.stride(1) == 1 and result.dtype == x.dtype and result.is_contiguous()


def _replace(node: Node) -> None:
    graph, (x, weights, ends) = node.graph, node.args
    value = fake(node)
    assert value is not None, "a matmul is a tensor"
    rows, experts = value.shape[0], fake(weights).shape[0]

    def call(target: object, *args: object, **kwargs: object) -> Node:
        return insert(graph, node, target, args, kwargs)

    row = call(aten.arange.start_step, 0, rows, 1, dtype=torch.int64, device=value.device, pin_memory=False)
    passed = call(aten.le.Tensor, call(aten.unsqueeze.default, ends, 0), call(aten.unsqueeze.default, row, 1))
    expert = call(aten.clamp.default, call(aten.sum.dim_IntList, passed, [1]), None, experts - 1)
    matrices = call(aten.index.Tensor, call(aten.transpose.int, weights, 1, 2), [expert])
    wide = [call(TO_COPY, part, dtype=torch.float32) for part in (matrices, call(aten.unsqueeze.default, x, 1))]
    total = call(aten.sum.dim_IntList, call(aten.mul.Tensor, *wide), [2])
    swap(node, call(TO_COPY, total, dtype=value.dtype))
