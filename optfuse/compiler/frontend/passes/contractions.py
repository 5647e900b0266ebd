"""Sums of products of tensors that are spread out over each other's dimensions, as matmuls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch.fx import Node

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.graph.rewrite import copied, insert, sized, swap, with_graph

aten, ours = torch.ops.aten, torch.ops.optfuse

_MATMULS = {
    torch.float32: ours.exact_bmm.default,
    torch.float16: aten.bmm.default,
    torch.bfloat16: aten.bmm.default,
}
#: The fewest products, and the fewest for each element that is read or written, that become a matmul. An estimate: with
#: fewer, loops wait for memory, and a matmul makes their operands be stored.
LEAST_PRODUCTS, LEAST_REUSE = 1 << 22, 16


@dataclass(frozen=True, slots=True)
class _Contraction:
    """Which dimensions of the products are in both factors or in one of them, and which of the shared are summed."""

    shape: tuple[int, ...]
    batch: tuple[int, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    summed: tuple[int, ...]

    def sizes(self, dims: tuple[int, ...]) -> list[int]:
        return [self.shape[d] for d in dims]


def contract_products(captured: Captured) -> Captured:
    """The graph with sums of products as matmuls, where each element is a factor of many products.

    Before: ``(a[:, :, None, :] * b[:, None, :, :]).sum(3)``. After: ``bmm(a, b.transpose(1, 2))``. In float32 the
    matmul does not use TF32, whatever torch's setting is: the products were exact.
    """
    graph = copied(captured.graph)
    for node in graph.graph.find_nodes(op="call_function", target=aten.sum.dim_IntList):
        found = _contraction(node)
        if found is not None:
            _replace(node, found)
    return with_graph(captured, graph)


def _contraction(node: Node) -> _Contraction | None:
    """The dimensions of a sum of products that is worth a matmul; None of other sums."""
    product, dims, total = node.args[0], node.args[1], sized(node)
    if not isinstance(product, Node) or product.target is not aten.mul.Tensor or len(product.users) > 1:
        return None
    a, b = (sized(factor) if isinstance(factor, Node) else None for factor in product.args)
    value = sized(product)
    if a is None or b is None or value is None or total is None or total.dtype not in _MATMULS or node.kwargs:
        return None
    if not value.dim():  # torch has a sum of one number "along its last dimension"
        return None
    if any(one.dtype != total.dtype or one.device != total.device for one in (value, a, b)):
        return None
    if not isinstance(dims, Sequence) or not dims:  # the sum of all elements
        return None
    rank, shape = value.dim(), tuple(value.shape)
    summed = {int(d) % rank for d in dims}  # type: ignore[arg-type]
    left, right = ({d for d in range(rank) if _extends(one, d - rank)} for one in (a, b))
    wide = {d for d in range(rank) if shape[d] > 1}
    if not wide <= left | right or not summed & left & right or not summed & wide <= left & right:
        return None
    found = _Contraction(
        shape,
        batch=tuple(sorted(left & right - summed)),
        left=tuple(sorted(left - right)),
        right=tuple(sorted(right - left)),
        summed=tuple(sorted(left & right & summed)),
    )
    elements = sum(prod(shape[d] for d in dims) for dims in (left, right)) + total.numel()
    return found if prod(shape) >= max(LEAST_PRODUCTS, LEAST_REUSE * elements) else None


def _extends(factor: torch.Tensor, d: int) -> bool:
    """Whether a factor has several elements along a dimension, counted from the last; not one that is repeated."""
    return -d <= factor.dim() and factor.shape[d] > 1 and factor.stride(d) != 0


def _replace(node: Node, found: _Contraction) -> None:
    product, total = node.args[0], sized(node)
    assert total is not None, "its sizes are known"
    assert isinstance(product, Node), "it sums products"
    batch, rows, columns = (found.sizes(dims) for dims in (found.batch, found.left, found.right))
    left, right = product.args
    assert isinstance(left, Node), "factors are tensors"
    assert isinstance(right, Node), "factors are tensors"
    a = _matrices(node, left, found, (found.batch, found.left, found.summed))
    b = _matrices(node, right, found, (found.batch, found.summed, found.right))
    matmul = _MATMULS[total.dtype]
    result = insert(node.graph, node, matmul, (a, b))
    result = insert(node.graph, node, aten.view.default, (result, [*batch, *rows, *columns]))
    kept = [*found.batch, *found.left, *found.right]
    order = sorted(range(len(kept)), key=kept.__getitem__)
    if order != list(range(len(kept))):
        result = insert(node.graph, node, aten.permute.default, (result, order))
    if not result.meta["val"].is_contiguous():
        result = insert(node.graph, node, aten.clone.default, (result,), {"memory_format": torch.contiguous_format})
    swap(node, insert(node.graph, node, aten.view.default, (result, list(total.shape))))


def _matrices(node: Node, factor: Node, found: _Contraction, groups: tuple[tuple[int, ...], ...]) -> Node:
    """A factor as matrices, shape (batch, first, second), whose dimensions are groups of the products'."""
    value: torch.Tensor = factor.meta["val"]
    more = len(found.shape) - value.dim()
    own = [d - more for dims in groups for d in dims]
    for d in range(value.dim()):
        if d not in own and value.shape[d] > 1:  # the same elements again
            factor = insert(node.graph, node, aten.slice.Tensor, (factor, d, 0, 1))
    order = [*own, *(d for d in range(value.dim()) if d not in own)]
    if order != list(range(len(order))):
        factor = insert(node.graph, node, aten.permute.default, (factor, order))
    sizes = [prod(found.sizes(dims)) for dims in groups]
    if not _viewable(factor.meta["val"], sizes):
        factor = insert(node.graph, node, aten.clone.default, (factor,), {"memory_format": torch.contiguous_format})
    return insert(node.graph, node, aten.view.default, (factor, sizes))


def _viewable(value: torch.Tensor, sizes: list[int]) -> bool:
    try:
        value.view(sizes)
    except (RuntimeError, ValueError):  # eager and fake tensors disagree on the kind
        return False
    return True
