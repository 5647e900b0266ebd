"""Rewrite grouped matmuls of few rows: as sums over the weights of each row's expert, or as a call of ours."""

from __future__ import annotations

import torch
from torch.fx import Node

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.graph.rewrite import copied, fake, insert, swap, with_graph
from optfuse.compiler.frontend.torch_internals.torch_bridge import TO_COPY

aten, ours = torch.ops.aten, torch.ops.optfuse

_GROUPED = aten._grouped_mm.default  # noqa: SLF001 - the operator has no public name

#: A row in so many experts, at most, is worth loops: each row reads its expert's weights by itself.
LEAST_EXPERTS_A_ROW = 2
#: The most rows for each expert, in the mean, for which the kernel of few rows is faster than a library's.
MOST_ROWS_AN_EXPERT = 32
#: Columns and terms are multiples of this, so that rows start at whole vectors.
UNIT = 16


def sum_over_experts(captured: Captured) -> Captured:
    """The graph with grouped matmuls of fewer rows than half the experts as loops that look up each row's expert.

    Before: ``_grouped_mm(x, w, ends)`` with x (T, K), w (E, K, N) and the end of each expert's rows. After:
    ``e = (ends <= arange(T)).sum(); (w[e].float() * x.float()).sum(over K)``. A library's kernel starts a program for
    each expert and has tiles that are nearly empty. With more rows, up to ``MOST_ROWS_AN_EXPERT`` an expert:
    ``grouped_products(x, w, ends)``, whose tiles are small.
    """
    graph = copied(captured.graph)
    for node in list(graph.graph.nodes):
        if node.target is not _GROUPED or not _is_by_rows(node):
            continue
        if _experts_a_row(node) >= LEAST_EXPERTS_A_ROW:
            _replace(node)
        elif _experts_a_row(node) * MOST_ROWS_AN_EXPERT >= 1 and _is_whole(node):
            swap(node, insert(graph.graph, node, ours.grouped_products.default, node.args))
    return with_graph(captured, graph)


def _is_by_rows(node: Node) -> bool:
    """Whether groups of rows are each multiplied by a matrix, whose sums run along its rows in memory."""
    if node.kwargs or len(node.args) != 3 or not all(isinstance(arg, Node) for arg in node.args):
        return False
    x, weights, ends = (fake(arg) for arg in node.args)
    result = fake(node)
    if x is None or weights is None or ends is None or result is None or (x.dim(), weights.dim()) != (2, 3):
        return False
    if not isinstance(x.shape[0], int) or not x.shape[0]:
        return False
    return weights.stride(1) == 1 and result.dtype == x.dtype and result.is_contiguous()


def _experts_a_row(node: Node) -> float:
    return fake(node.args[1]).shape[0] / fake(node.args[0]).shape[0]


def _is_whole(node: Node) -> bool:
    """Whether rows of the operands and of the result start at whole vectors."""
    x, weights, ends = (fake(arg) for arg in node.args)
    numbers = (*weights.shape[1:], x.stride(0), weights.stride(0), weights.stride(2))
    side_by_side = x.stride(1) == 1 and ends.stride() == (1,)
    return side_by_side and ends.dtype == torch.int32 and all(n % UNIT == 0 for n in numbers)


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
