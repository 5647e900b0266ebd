"""Attention of a few queries over many keys, as in a decode step, becomes an operator of ours that splits the keys."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.graph.rewrite import copied, fake, insert, swap, with_graph
from optfuse.compiler.frontend.torch_internals.torch_bridge import TO_COPY
from optfuse.compiler.ops.attention_cached import ATTENTION_QUERIES

aten, ours = torch.ops.aten, torch.ops.optfuse

_ATTENTION = frozenset(
    {
        aten._scaled_dot_product_cudnn_attention.default,  # noqa: SLF001 - these operators have no public names
        aten._scaled_dot_product_efficient_attention.default,  # noqa: SLF001
        aten._scaled_dot_product_flash_attention.default,  # noqa: SLF001
        aten._scaled_dot_product_flash_attention_for_cpu.default,  # noqa: SLF001
        ours.attention.default,
    }
)
_RESHAPES = frozenset({aten.view.default, aten._unsafe_view.default, aten.reshape.default})  # noqa: SLF001
_COPIES = frozenset({aten.clone.default, TO_COPY})
_HALF = frozenset({torch.float16, torch.bfloat16})

#: The fewest keys, and how many times as many as queries, for which splitting them is worth while.
LEAST_KEYS = 128
LEAST_RATIO = 8
#: The widest head that the kernel holds.
WIDEST_HEAD = 256


def split_cached_attention(captured: Captured) -> Captured:
    """The graph with half-precision attention of few queries over many keys replaced by the operator that splits keys.

    Before: ``attention(q, repeat(k), repeat(v), mask)``. After: ``attention_cached(q, k, v, mask)``: heads of keys are
    not repeated for the query heads that share them.
    """
    graph = copied(captured.graph)
    for node in list(graph.graph.nodes):
        if node.target in _ATTENTION:
            _replace(node)
    return with_graph(captured, graph)


def _replace(node: Node) -> None:
    given = _arguments(node)
    query, key, value = given["query"], given["key"], given["value"]
    used = [item for item in node.users if item.users]
    if [item.args[1] for item in used] != [0] or given.get("dropout_p", 0.0) != 0.0 or given.get("keep"):
        return
    shared_key, shared_value = _before_repeat(key), _before_repeat(value)
    if shared_key is not None and shared_value is not None and _heads(shared_key) == _heads(shared_value):
        key, value = shared_key, shared_value
    if not _is_cached(query, key, value):
        return
    mask = given.get("attn_bias", given.get("attn_mask", given.get("mask")))
    scale = given.get("scale")
    scale = 1 / math.sqrt(_shape(query)[3]) if scale is None else scale
    operands = (query, key, value, mask, bool(given.get("is_causal", False)), scale)
    split = insert(node.graph, node, ours.attention_cached.default, operands)
    if _steps(split) == _steps(used[0]):
        swap(used[0], split)
        for dead in (*node.users, node):  # what is tagged as random stays by itself
            node.graph.erase_node(dead)


def _arguments(node: Node) -> dict[str, Any]:
    """A node's arguments by the names of its operator's schema."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]  # noqa: SLF001 - the schema has no other name
    return {**dict(zip((argument.name for argument in schema), node.args, strict=False)), **node.kwargs}


def _before_repeat(node: Node) -> Node | None:
    """The tensor (B, G, S, D) whose heads a tensor (B, H, S, D) repeats one by one; None for another tensor."""
    if node.target not in _RESHAPES:
        return None
    spread = node.args[0]
    while isinstance(spread, Node) and spread.target in _COPIES and fake(spread).dtype == fake(node).dtype:
        spread = spread.args[0]
    if not isinstance(spread, Node) or spread.target is not aten.expand.default:
        return None
    single = spread.args[0]
    if not isinstance(single, Node) or single.target is not aten.unsqueeze.default or single.args[1] not in (2, -3):
        return None
    base = single.args[0]
    batch, groups, repeats, *rest = _shape(spread) if len(_shape(spread)) == 5 else (0, 0, 0)
    same = isinstance(base, Node) and _shape(base) == (batch, groups, *rest)
    return base if same and _shape(node) == (batch, groups * repeats, *rest) else None  # type: ignore[return-value]


def _is_cached(query: Node, key: Node, value: Node) -> bool:
    queries, keys, values = _shape(query), _shape(key), _shape(value)
    if fake(query).dtype not in _HALF or len(queries) != 4 or 0 in (*queries, *keys, *values):
        return False
    _, heads, length, width = queries
    sharing = heads // keys[1] * length
    many = keys[2] >= max(LEAST_KEYS, LEAST_RATIO * length)
    return many and sharing <= ATTENTION_QUERIES and max(width, values[3]) <= WIDEST_HEAD


def _heads(node: Node) -> int:
    return _shape(node)[1]


def _shape(node: Node) -> tuple[int, ...]:
    value = fake(node)
    assert value is not None, "attention takes tensors"
    return tuple(value.shape)


def _steps(node: Node) -> list[tuple[int, int]]:
    """The sizes and strides of the dimensions of more than one element: where the elements lie."""
    value = fake(node)
    assert value is not None, "attention's result is a tensor"
    return [(size, step) for size, step in zip(value.shape, value.stride(), strict=True) if size > 1]
