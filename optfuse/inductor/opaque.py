"""Attention that stays one call whatever it is compiled for; used in Inductor's process only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.library import custom_op

_SCHEMA = "(Tensor query, Tensor key, Tensor value, Tensor? mask) -> Tensor"


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, mask)


_opaque_attention = custom_op("optfuse_inductor::attention", _attend, mutates_args=(), schema=_SCHEMA)


@_opaque_attention.register_fake
def _attention_fake(query: Tensor, key: Tensor, value: Tensor, mask: Any) -> Tensor:
    shape = (*query.shape[:-1], value.shape[-1])
    if query.dim() != 4:
        return query.new_empty(shape)
    batch, heads, length, width = shape
    return query.new_empty((batch, length, heads, width)).transpose(1, 2)


def attention_call(node: fx.Node) -> None:
    """Let a node call the operator that stays whole. What else it was given is no matter of fusion."""
    mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
    node.target = torch.ops.optfuse_inductor.attention.default
    node.args = (*node.args[:3], mask)
    node.kwargs = {}
