"""Attention by cuDNN's kernels, with plans that no other caller shares.

Torch keeps cuDNN's plans of a backward by its sizes, its dropout and the layouts of query, key, value and mask, and a
plan reads the result and its gradient in the layout that they had when it was made. A caller that lays them out
otherwise reads a wrong gradient, without an error (seen with torch 2.11, after Inductor). The calls here ask for a
dropout of -0.0, which is none and has plans of its own, and lay both out as torch does the result.
"""

# ruff: noqa: SLF001  (the kernels of scaled_dot_product_attention have no public name)

from __future__ import annotations

from typing import Any

import torch

from optfuse.compiler.ops.attention_sums import attention_mask_sum

aten = torch.ops.aten

#: Whether cuDNN's kernel takes calls of one kind.
ATTENTION_CUDNN: dict[tuple[object, ...], bool] = {}
#: Up to so many queries and keys the "efficient" kernel is faster than cuDNN's on an H200, and slower from there on.
ATTENTION_SHORT: int = 64


def attention_by_cudnn(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether cuDNN's forward kernel is the faster one for a call with a mask, and takes such tensors."""
    if max(query.shape[2], key.shape[2]) <= ATTENTION_SHORT or key.shape[2] % 8 or query.element_size() != 2:
        return False
    kind = (query.device, query.dtype, query.shape, key.shape, value.shape)
    if kind not in ATTENTION_CUDNN:
        with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.CUDNN_ATTENTION]):
            made: Any = torch.backends.cuda.SDPAParams  # its stub takes no arguments
            params = made(query, key, value, None, 0.0, False, False)
            ATTENTION_CUDNN[kind] = torch.backends.cuda.can_use_cudnn_attention(params)
    return ATTENTION_CUDNN[kind]


def attention_backward_cudnn(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    is_causal: bool,
    scale: float,
    bias_grad: bool,
) -> list[torch.Tensor]:
    """The gradients by cuDNN's kernel without dropout, and that of a mask which all batches share by one of ours."""
    length, columns = query.shape[2], key.shape[2]
    lse = lse.narrow(-1, 0, length).contiguous()
    rng = query.new_empty((), dtype=torch.int64)  # of dropout, which there is none of
    found = attention_backward_own_plan(
        *(grad, query, key, value, out, lse.unsqueeze(-1), rng, rng, bias, None, None, length, columns, 0.0, is_causal),
        scale=scale,
    )
    if bias_grad:
        return [*found, attention_mask_sum(grad, query, key, value, bias[:1], out, lse, scale)]
    return list(found)


def attention_backward_own_plan(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    seed: torch.Tensor,
    offset: torch.Tensor,
    bias: torch.Tensor | None,
    cum_seq_q: torch.Tensor | None,
    cum_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``aten._scaled_dot_product_cudnn_attention_backward`` of tensors with four dimensions, in any layout."""
    order = sorted(range(4), key=query.stride, reverse=True)  # in which torch lays out the result
    back = [order.index(dim) for dim in range(4)]
    grad, out = (x.permute(order).contiguous().permute(back) for x in (grad, out))
    return aten._scaled_dot_product_cudnn_attention_backward(
        *(grad, query, key, value, out, lse, seed, offset, bias, cum_seq_q, cum_seq_k, max_q, max_k),
        *(dropout_p or -0.0, is_causal),
        scale=scale,
    )
