"""The gradient of an attention mask that all batches share, summed over the batches while it is computed.

Libraries write a gradient for every batch, which another kernel reads to add them up. Here each program loops over the
batches with its tile of the sum in registers.
"""

# pyright: basic
from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def attention_mask_kernel(
    query,
    key,
    value,
    grad,
    out,
    lse,
    mask,
    result,
    query_batch,
    query_head,
    query_row,
    key_batch,
    key_head,
    key_row,
    value_batch,
    value_head,
    value_row,
    grad_batch,
    grad_head,
    grad_row,
    out_batch,
    out_head,
    out_row,
    lse_batch,
    lse_head,
    mask_head,
    mask_row,
    result_head,
    result_row,
    batches,
    length,
    columns,
    scale,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUES: tl.constexpr,
    WBLOCK: tl.constexpr,
    VBLOCK: tl.constexpr,
    RBLOCK: tl.constexpr,
    CBLOCK: tl.constexpr,
):
    """A piece of RBLOCK x CBLOCK of one head's sum, over all batches."""
    pieces = tl.cdiv(columns, CBLOCK)
    row = tl.program_id(0) // pieces * RBLOCK + tl.arange(0, RBLOCK)
    column = tl.program_id(0) % pieces * CBLOCK + tl.arange(0, CBLOCK)
    head = tl.program_id(1)
    width, values = tl.arange(0, WBLOCK), tl.arange(0, VBLOCK)
    rows, cells = row < length, column < columns
    inside = rows[:, None] & cells[None, :]
    at_query, at_key = rows[:, None] & (width < WIDTH)[None, :], cells[:, None] & (width < WIDTH)[None, :]
    at_out, at_value = rows[:, None] & (values < VALUES)[None, :], cells[:, None] & (values < VALUES)[None, :]
    bias = tl.load(mask + head * mask_head + row[:, None] * mask_row + column[None, :], inside, 0.0).to(tl.float32)
    query += head * query_head + row[:, None] * query_row + width[None, :]
    key += head // GROUP * key_head + column[:, None] * key_row + width[None, :]
    value += head // GROUP * value_head + column[:, None] * value_row + values[None, :]
    grad += head * grad_head + row[:, None] * grad_row + values[None, :]
    out += head * out_head + row[:, None] * out_row + values[None, :]
    lse += head * lse_head + row
    total = tl.zeros((RBLOCK, CBLOCK), tl.float32)
    for batch in range(batches):
        q = tl.load(query + batch * query_batch, at_query, 0.0)
        k = tl.load(key + batch * key_batch, at_key, 0.0)
        v = tl.load(value + batch * value_batch, at_value, 0.0)
        g = tl.load(grad + batch * grad_batch, at_out, 0.0)
        o = tl.load(out + batch * out_batch, at_out, 0.0)
        level = tl.load(lse + batch * lse_batch, rows, 0.0)
        scores = tl.dot(q, tl.trans(k)) * scale + bias
        weights = tl.exp2((scores - level[:, None]) * 1.4426950408889634)
        change = tl.dot(g, tl.trans(v)) - tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)[:, None]
        total += weights * change
    tl.store(result + head * result_head + row[:, None] * result_row + column[None, :], total, inside)


def attention_mask_sum(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """The gradient of a mask of (1, H, L, S), rows padded as that of ``attention_backward``; no dropout."""
    heads, length, columns = mask.shape[1:]
    result = mask.new_empty((1, heads, length, columns + -columns % 16)).narrow(-1, 0, columns)
    blocks = {"RBLOCK": 64, "CBLOCK": 64}
    widths = {"WIDTH": query.shape[3], "VALUES": value.shape[3]}
    padded = {"WBLOCK": max(16, triton.next_power_of_2(query.shape[3]))}
    padded["VBLOCK"] = max(16, triton.next_power_of_2(value.shape[3]))
    steps = [step for x in (query, key, value, grad, out) for step in x.stride()[:3]]
    grid = (triton.cdiv(length, 64) * triton.cdiv(columns, 64), heads)
    attention_mask_kernel[grid](  # pyright: ignore[reportIndexIssue]
        *(query, key, value, grad, out, lse, mask, result, *steps, *lse.stride()[:2]),
        *(mask.stride(1), mask.stride(2), result.stride(1), result.stride(2), len(query), length, columns, scale),
        **{"GROUP": heads // key.shape[1], **widths, **padded, **blocks, "num_warps": 4, "num_stages": 3},
    )
    return result
