"""The memory layouts of attention's operands and results: repeated heads, padded and aligned rows, expanded masks."""

from __future__ import annotations

import torch


def attention_dtype(query: torch.Tensor) -> torch.dtype:
    """The dtype of the log-sum-exp."""
    return torch.float64 if query.dtype == torch.float64 else torch.float32


def attention_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Keys or values with each head repeated for the query heads that share it."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def attention_groups(x: torch.Tensor, groups: int) -> torch.Tensor:
    """Gradients of repeated heads, summed over those that share a head."""
    return x if x.shape[1] == groups else x.unflatten(1, (groups, -1)).sum(2)


def attention_padded(x: torch.Tensor) -> torch.Tensor:
    """A tensor as GPU kernels take it: a last dimension of a multiple of 8, aligned to 16 bytes; itself if it is so.

    A copy lies in memory as (B, L, H, E): the backward kernel takes that of the output for granted.
    """
    width = x.shape[-1]
    if width % 8:
        batch, heads, length, _ = x.shape
        padded = x.new_zeros((batch, length, heads, width + -width % 8)).transpose(1, 2)
        padded.narrow(-1, 0, width).copy_(x)
        return padded
    return x if attention_aligned(x) else x.transpose(1, 2).clone(memory_format=torch.contiguous_format).transpose(1, 2)


def attention_apart(x: torch.Tensor) -> torch.Tensor:
    """A tensor whose rows are apart, each of neighbours, as the CPU's kernels take it, which do not ask.

    A GPU's kernels take rows that overlap, and without neighbours torch calls none of them. Itself if it is so.
    """
    others = [step for size, step in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1]
    fits = x.stride(-1) == 1 and (x.is_cuda or all(step >= x.shape[-1] for step in others))
    return x if fits else x.contiguous()


def attention_bias(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """A mask as the GPU kernel takes it: of the query's dtype, rows aligned. What is broadcast stays so."""
    if mask is None:
        return None
    base = mask
    for dim in range(3):
        base = base.narrow(dim, 0, 1) if mask.stride(dim) == 0 else base
    base = base.to(query.dtype)
    if not attention_aligned(base):
        base = attention_mask_memory(base).copy_(base)
    return base.expand(mask.shape)


def attention_everywhere(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """A mask for each batch."""
    return None if mask is None else mask.expand(query.shape[0], -1, -1, -1)


def attention_aligned(x: torch.Tensor) -> bool:
    """Whether every row is contiguous and starts at a multiple of 16 bytes, for items of 2 bytes or more."""
    rows = [step for size, step in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1]
    return x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and all(step % 8 == 0 for step in rows)


def attention_host(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A seed where the kernel reads it: on the host, or on the GPU while a CUDA graph is captured."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return x.to(device)
    return x.cpu() if x.is_cuda else x


def attention_rows(x: torch.Tensor) -> torch.Tensor:
    """(B, H, L, E) that lies in memory as (B, L, H, E); itself if it does."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def attention_padded_rows(x: torch.Tensor) -> torch.Tensor:
    """A mask's gradient whose rows are padded to a multiple of 16; itself if they are."""
    _, heads, length, columns = x.shape
    row = columns + -columns % 16
    return x if x.stride() == (heads * length * row, length * row, row, 1) else attention_mask_memory(x).copy_(x)


def attention_mask_memory(mask: torch.Tensor) -> torch.Tensor:
    """Memory for a mask of that shape, or for its gradient: rows are padded to a multiple of 16."""
    columns = mask.shape[-1]
    return mask.new_empty((*mask.shape[:-1], columns + -columns % 16)).narrow(-1, 0, columns)
