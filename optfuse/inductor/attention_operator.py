"""An attention operator that Inductor keeps as one library call, on every device. Only Inductor's graphs use it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.library import custom_op

_SCHEMA = (
    "(Tensor query, Tensor key, Tensor value, Tensor? mask, float dropout_p, bool is_causal, float? scale, "
    "bool enable_gqa) -> Tensor"
)
_OPTIONS: dict[str, Any] = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    expected = _attention_fake(query, key, value)
    return out if out.stride() == expected.stride() else expected.copy_(out)


_opaque_attention = custom_op("optfuse_inductor::attention", _attend, mutates_args=(), schema=_SCHEMA)


@_opaque_attention.register_fake
def _attention_fake(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Tensor:
    shape = (*query.shape[:-1], value.shape[-1])
    if query.dim() != 4:
        return query.new_empty(shape)
    batch, heads, length, width = shape
    return query.new_empty((batch, length, heads, width)).transpose(1, 2)


def call_whole_attention(node: fx.Node) -> None:
    """Make a node of ``aten.scaled_dot_product_attention`` call the operator above."""
    given = {**_OPTIONS, **dict(zip(_OPTIONS, node.args[3:], strict=False)), **node.kwargs}
    node.target = torch.ops.optfuse_inductor.attention.default
    node.args = (*node.args[:3], *(given[name] for name in _OPTIONS))
    node.kwargs = {}
