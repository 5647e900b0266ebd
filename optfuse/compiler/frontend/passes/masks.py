"""Attention masks that are the same for every batch are computed once, and broadcast by attention itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from optfuse.compiler.frontend.graph.rewrite import copied, fake, insert, is_impure
from optfuse.compiler.frontend.torch_internals.torch_bridge import TO_COPY, OpOverload, is_mutating

aten = torch.ops.aten

_ATTENTION = aten.scaled_dot_product_attention.default
_MASK = 3  # position among (query, key, value, attn_mask, ..)

#: Operators that may hand on their operand.
_SAME = frozenset({aten.contiguous.default, aten.to.dtype, aten.alias.default})
#: Operators that, beside those of torch's pointwise tag, do to each batch what they do to the others.
_EACH = _SAME | {aten.clone.default, TO_COPY, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar}


def share_masks(graph: GraphModule) -> GraphModule:
    """The graph with masks (B, H, L, S) that are equal for all batches computed once, as (1, H, L, S).

    Before: ``m = contiguous(where(expand(seen, [B, 1, L, S]), bias, -inf)); attention(q, k, v, m)``. After:
    ``m = contiguous(where(expand(seen, [1, 1, L, S]), bias, -inf)); attention(q, k, v, m)``. Such masks are not written
    B times, and kernels find them in the cache. Works on graphs of ATen operators before autograd.
    """
    if not any(_wide_mask(node) for node in graph.graph.nodes):
        return graph
    graph = copied(graph)
    shared: dict[Node, Node | None] = {}
    for node in list(graph.graph.nodes):
        mask = _wide_mask(node)
        once = None if mask is None else _once(mask, shared)
        if mask is None or once is None:
            continue
        if len(node.args) > _MASK:
            node.update_arg(_MASK, once)
        else:
            node.update_kwarg("attn_mask", once)
    graph.graph.eliminate_dead_code(is_impure_node=lambda node: not _is_pure(node))
    graph.recompile()
    return graph


def _wide_mask(node: Node) -> Node | None:
    """The mask of a call of attention, if it is of four dimensions and several batches."""
    if node.target is not _ATTENTION:
        return None
    mask = node.kwargs.get("attn_mask", node.args[_MASK] if len(node.args) > _MASK else None)
    value = fake(mask) if isinstance(mask, Node) else None
    if value is None or value.dim() != 4 or value.shape[0] == 1:
        return None
    return mask  # type: ignore[return-value]


def _once(node: Node, shared: dict[Node, Node | None]) -> Node | None:
    """A node of one batch that equals ``node`` in every batch; None if batches may differ."""
    if node not in shared:
        shared[node] = _compute_once(node, shared)
    return shared[node]


def _compute_once(node: Node, shared: dict[Node, Node | None]) -> Node | None:
    value = fake(node)
    if value is None or not _is_pure(node) or any(is_mutating(user.target) for user in _seen_through(node)):
        return None
    if node.target is aten.expand.default:
        source = fake(node.args[0])
        if source is None or (source.dim() == value.dim() and source.shape[0] != 1):
            return None
        return insert(node.graph, node, aten.expand.default, (node.args[0], [1, *value.shape[1:]]))
    if node.target not in _EACH and torch.Tag.pointwise not in node.target.tags:  # type: ignore[union-attr]
        return None
    replaced: dict[Node, Node] = {}
    for operand in node.all_input_nodes:
        given = fake(operand)
        if given is not None and given.dim() == value.dim() and given.shape[0] != 1:
            once = _once(operand, shared)
            if once is None:
                return None
            replaced[operand] = once
    if not replaced:  # made of smaller tensors that broadcast
        return None
    args: Any = torch.fx.node.map_arg(node.args, lambda n: replaced.get(n, n))
    kwargs: Any = torch.fx.node.map_arg(node.kwargs, lambda n: replaced.get(n, n))
    return insert(node.graph, node, node.target, args, kwargs)


def _is_pure(node: Node) -> bool:
    target = node.target
    return isinstance(target, OpOverload) and not is_impure(node)


def _seen_through(node: Node) -> Iterator[Node]:
    """Users of a node, and users of what may share its memory."""
    for user in node.users:
        yield user
        shares = isinstance(user.target, OpOverload) and (
            user.target in _SAME or any(argument.alias_info is not None for argument in user.target._schema.arguments)  # noqa: SLF001
        )
        if shares:
            yield from _seen_through(user)
