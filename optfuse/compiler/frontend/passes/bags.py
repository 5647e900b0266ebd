"""Bags of equally many rows of a table (``nn.EmbeddingBag`` of a matrix of ids) as loops: rows, and their sum."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Node

from optfuse.compiler.frontend.graph.rewrite import copied, fake, insert, swap

aten = torch.ops.aten

_CALLS = (aten.embedding_bag.default, aten.embedding_bag.padding_idx)
#: The modes of ATen's operator that sum.
_SUM, _MEAN = 0, 1


def sum_bags(graph: GraphModule) -> GraphModule:
    """The graph with bags of one size as sums over gathered rows, which are loops and join what reads them.

    Before: ``embedding_bag(table, ids.reshape(-1), arange(0, n, size))``. After: ``embedding(table, ids).sum(1)``.
    Works on graphs before autograd, of torch functions or of ATen operators.
    """
    if not any(node.target in (*_CALLS, F.embedding_bag) for node in graph.graph.nodes):
        return graph
    graph = copied(graph)
    for node in list(graph.graph.nodes):
        if node.target is F.embedding_bag:
            node.target = _bags_of_rows
        elif node.target in _CALLS:
            _sum_rows(node)
    graph.recompile()
    return graph


def _bags_of_rows(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """``torch.nn.functional.embedding_bag``; of a matrix of ids by gathered rows."""
    plain = max_norm is None and padding_idx is None and not scale_grad_by_freq and not sparse
    full = mode == "sum" or (mode == "mean" and isinstance(input.shape[-1], int) and input.shape[-1] > 0)
    if not plain or not full or input.dim() != 2:
        return F.embedding_bag(
            input, weight, offsets, max_norm, norm_type, scale_grad_by_freq, mode, sparse, per_sample_weights,
            include_last_offset, padding_idx,
        )  # fmt: skip
    rows = F.embedding(input, weight)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    return rows.sum(1) if mode == "sum" else rows.mean(1)


def _sum_rows(node: Node) -> None:
    """Replace a call whose bags have one size, and of whose results only the bags are used."""
    table, ids, offsets, by_frequency, mode, sparse, weights, last, padding = (*node.args, *[None] * 9)[:9]
    found = fake(ids) if isinstance(ids, Node) else None
    size = _size_of_bags(offsets, found)
    parts = list(node.users)
    others = any(part.users and part.args[1:] != (0,) for part in parts)
    if found is None or not size or by_frequency or sparse or last or others or node.kwargs:
        return
    if mode not in (_SUM, _MEAN, None) or padding not in (None, -1):
        return
    shape = [found.shape[0] // size, size]
    graph = node.graph
    rows = insert(graph, node, aten.embedding.default, (table, insert(graph, node, aten.view.default, (ids, shape))))
    if isinstance(weights, Node):
        scales = insert(graph, node, aten.view.default, (weights, [*shape, 1]))
        rows = insert(graph, node, aten.mul.Tensor, (rows, scales))
    reduction = aten.mean.dim if mode == _MEAN else aten.sum.dim_IntList
    bags = insert(graph, node, reduction, (rows, [1]))
    for part in parts:
        swap(part, bags)
    graph.erase_node(node)


def _size_of_bags(offsets: object, ids: Tensor | None) -> int:
    """The size that all bags have; 0 if they may differ."""
    if not isinstance(offsets, Node) or ids is None or ids.dim() != 1:
        return 0
    if offsets.target is not aten.arange.start_step or offsets.args[0] != 0 or offsets.args[1] != ids.shape[0]:
        return 0
    size = offsets.args[2] if len(offsets.args) > 2 else 1
    return size if isinstance(size, int) and size > 0 and ids.shape[0] % size == 0 else 0
