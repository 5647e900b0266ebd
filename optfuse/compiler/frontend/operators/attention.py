"""Attention that stays one operator while a graph is traced, also where eager execution has no kernel for it.

Torch decides by the device, the dtype, the shapes, the dropout and whether the mask needs a gradient if attention is
one operator or matrix products and a softmax. Where it would be the latter, ``optfuse::attention`` takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from optfuse.compiler.frontend.torch_internals.torch_bridge import outside_of_modes
from optfuse.compiler.frontend.torch_internals.torch_fakes import operators_of
from optfuse.compiler.frontend.torch_internals.torch_sizes import is_symbolic
from optfuse.compiler.ops.registered import attention, attention_dropout, padded_rows


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    draw: int = 0,
    any_layout: bool = False,
    ours: bool = False,
) -> Tensor:
    """``scaled_dot_product_attention`` as one operator: torch's own where it has one, else ours.

    Args:
        draw: The call's number in its graph.
        any_layout: Whether the result may have other strides than eager execution's.
        ours: Whether to take our operator where torch has one, too: it knows better kernels for some calls.
    """

    def eager(*tensors: Tensor | None) -> Tensor:
        mask = tensors[3]
        return F.scaled_dot_product_attention(
            tensors[0], tensors[1], tensors[2], mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )

    operators, expected = operators_of(eager, (query, key, value, attn_mask))
    # on the CPU torch's operator for float64 says that its by-products are float32
    theirs = any("attention" in name for name in operators) and expected.dtype != torch.float64
    if theirs and not ours and not (dropout_p > 0 and keeps_seeds_on_host(operators)):
        return eager(query, key, value, attn_mask)
    query, key, value = (x.to(expected.dtype) for x in (query, key, value))  # as autocast has it
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    out = _attend_batched(query, key, value, _added(attn_mask, query.dtype), dropout_p, is_causal, scale, draw)
    with outside_of_modes():  # sizes that change: the tracer does not know those of what ran without it
        dense = not any_layout and expected.is_contiguous()
    return out.contiguous() if dense else out


def keeps_seeds_on_host(operators: Sequence[str]) -> bool:
    """Whether attention runs as an operator whose seeds lie in the host's memory, though torch traces them on the GPU.

    Its gradient reads them there: given the GPU's, as traced, it ends the process. Ours says where they are.
    """
    return any("efficient_attention" in name for name in operators)


def _added(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A mask as it is added to the scores, aligned here, where generated kernels can do it once for all calls."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, -torch.inf).to(dtype)
    rows = [step for size, step in zip(mask.shape[:-1], mask.stride()[:-1], strict=True) if size > 1]
    # rows of a size that changes are aligned at some sizes, and at those too they are copied
    aligned = mask.stride(-1) == 1 and all(not is_symbolic(step) and step % 8 == 0 for step in rows)
    return mask if aligned or mask.shape[-1] == 1 else padded_rows(mask)


def _attend_batched(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
    draw: int,
) -> Tensor:
    """Call the operator on tensors of four dimensions: what is broadcast is expanded, further batches are one."""
    keep = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (query, key, value, mask))
    flat = query.dim() == key.dim() == value.dim() == 2
    query, key, value = (x if x.dim() > 2 else x.unsqueeze(0) for x in (query, key, value))
    batch = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    heads = max(x.shape[-3] for x in (query, key, value))
    query = _with_heads(query, heads)
    if key.shape[-3] != value.shape[-3]:  # else query heads may share them
        key, value = _with_heads(key, heads), _with_heads(value, heads)
    four = [_with_one_batch(x.expand(*batch, *x.shape[-3:])) for x in (query, key, value)]
    if mask is not None:
        scores = (heads, query.shape[-2], key.shape[-2])
        repeats = all(size == 1 for size in mask.shape[:-3])
        given = (1,) * len(batch) if repeats else tuple(batch)
        mask = _with_one_batch(mask.expand(*given, *scores))
    if dropout_p > 0:
        out = attention_dropout(*four, mask, dropout_p, is_causal, scale, keep, draw)[0]
    else:
        out = attention(*four, mask, is_causal, scale, keep)[0]
    if len(batch) != 1:
        out = out.reshape(*batch, *out.shape[1:])
    return out.squeeze(0) if flat else out


def _with_one_batch(x: Tensor) -> Tensor:
    """The tensor with one batch dimension; itself where it has one: a reshape compares strides, with guards."""
    return x if x.dim() == 4 else x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:])


def _with_heads(x: Tensor, heads: int) -> Tensor:
    return x if x.shape[-3] == heads else x.repeat_interleave(heads // x.shape[-3], -3)
