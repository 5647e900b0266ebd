"""Sums of products of tensors that are spread out over each other's dimensions, as matmuls."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch.fx import Node

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from optfuse.compiler.frontend.captured import Captured
from optfuse.compiler.frontend.passes.rewrite import copied, insert, sized, swap, with_graph

aten, ours = torch.ops.aten, torch.ops.optfuse

_MATMULS = {
    torch.float32: ours.exact_bmm.default,
    torch.float16: aten.bmm.default,
    torch.bfloat16: aten.bmm.default,
}
#: The fewest products, and the fewest for each element that is read or written, for which loops are slower: they
#: compute about ten while an element goes to memory and back.
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
    product = node.args[0]
    total = sized(node)
    if not isinstance(product, Node) or product.target is not aten.mul.Tensor or total is None or node.kwargs:
        return None
    factors = [sized(factor) if isinstance(factor, Node) else None for factor in product.args]
    value = sized(product)
    if len(product.users) > 1 or None in factors or value is None or total.dtype not in _MATMULS:
        return None
    if any(one.dtype != total.dtype or one.device != total.device for one in (value, *factors)):
        return None
    rank, shape = value.dim(), tuple(value.shape)
    summed = {d % rank for d in node.args[1]} if rank else set()
    left, right = ({d for d in range(rank) if _extends(one, d - rank)} for one in factors)
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
    assert total is not None
    batch, summed = found.sizes(found.batch), found.sizes(found.summed)
    rows, columns = found.sizes(found.left), found.sizes(found.right)
    a = _matrices(node, product.args[0], found, (found.batch, found.left, found.summed))
    b = _matrices(node, product.args[1], found, (found.batch, found.summed, found.right))
    matmul = _MATMULS[total.dtype]
    result = insert(node.graph, node, matmul, (a, b))
    assert prod(batch) * prod(rows) * prod(summed) == sized(a).numel(), "each dimension is in one place"
    result = insert(node.graph, node, aten.view.default, (result, [*batch, *rows, *columns]))
    kept = [*found.batch, *found.left, *found.right]
    order = sorted(range(len(kept)), key=kept.__getitem__)
    if order != list(range(len(kept))):
        result = insert(node.graph, node, aten.permute.default, (result, order))
    if not sized(result).is_contiguous():
        result = insert(node.graph, node, aten.clone.default, (result,), {"memory_format": torch.contiguous_format})
    swap(node, insert(node.graph, node, aten.view.default, (result, list(total.shape))))


def _matrices(node: Node, factor: Node, found: _Contraction, groups: tuple[tuple[int, ...], ...]) -> Node:
    """A factor as matrices, shape (batch, first, second), whose dimensions are groups of the products'."""
    value = sized(factor)
    assert value is not None
    more = len(found.shape) - value.dim()
    own = [d - more for dims in groups for d in dims]
    for d in range(value.dim()):
        if d not in own and value.shape[d] > 1:  # the same elements again
            factor = insert(node.graph, node, aten.slice.Tensor, (factor, d, 0, 1))
    order = [*own, *(d for d in range(value.dim()) if d not in own)]
    if order != list(range(len(order))):
        factor = insert(node.graph, node, aten.permute.default, (factor, order))
    sizes = [prod(found.sizes(dims)) for dims in groups]
    if not _viewable(sized(factor), sizes):
        factor = insert(node.graph, node, aten.clone.default, (factor,), {"memory_format": torch.contiguous_format})
    return insert(node.graph, node, aten.view.default, (factor, sizes))


def _viewable(value: torch.Tensor, sizes: list[int]) -> bool:
    try:
        value.view(sizes)
    except (RuntimeError, ValueError):  # eager and fake tensors disagree on the kind
        return False
    return True
