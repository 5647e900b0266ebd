"""Attention of a few queries over many keys, as in a decode step over a cache: the keys are split among programs.

Libraries give a head of few queries to one program, which walks over all keys, and want each head of keys repeated for
the query heads that share it. Here the queries that share a head of keys are the rows of one tile, and a head's keys
are split so that the programs fill the device; a second kernel combines what the splits have found.

Shapes: query (B, H, L, D), key (B, G, S, D), value (B, G, S, E) where G divides H, mask (B or 1, H or 1, L, S).
"""

# pyright: basic
from __future__ import annotations

import torch
import triton
import triton.language as tl

#: The most queries that share a head of keys: the rows of one tile.
ATTENTION_QUERIES: int = 64
#: Keys of one tile, and for wider heads than the second number half as many.
ATTENTION_COLUMNS: int = 128
ATTENTION_NARROW: int = 64


@triton.jit
def attention_cached_kernel(
    query,
    key,
    value,
    mask,
    out,
    parts,
    levels,
    query_batch,
    query_head,
    query_row,
    key_batch,
    key_head,
    key_row,
    value_batch,
    value_head,
    value_row,
    mask_batch,
    mask_head,
    mask_row,
    mask_column,
    out_batch,
    out_row,
    out_head,
    columns,
    scale,
    share,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    LENGTH: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUES: tl.constexpr,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
    WHOLE: tl.constexpr,
    RBLOCK: tl.constexpr,
    CBLOCK: tl.constexpr,
    WBLOCK: tl.constexpr,
    VBLOCK: tl.constexpr,
):
    """The queries of one head of keys, over ``share`` columns: results (WHOLE), or sums, maxima and weighted values."""
    pair, split = tl.program_id(0), tl.program_id(1)
    batch, group = (pair // HEADS).to(tl.int64), pair % HEADS
    row = tl.arange(0, RBLOCK)
    head, line = group * GROUP + row // LENGTH, row % LENGTH
    rows = row < GROUP * LENGTH
    width, values, cell = tl.arange(0, WBLOCK), tl.arange(0, VBLOCK), tl.arange(0, CBLOCK)
    wide, filled = width < WIDTH, values < VALUES
    query += batch * query_batch + head[:, None] * query_head + line[:, None] * query_row + width[None, :]
    q = tl.load(query, rows[:, None] & wide[None, :], 0.0)
    key += batch * key_batch + group * key_head
    value += batch * value_batch + group * value_head
    mask += batch * mask_batch + head[:, None] * mask_head + line[:, None] * mask_row
    top = tl.full((RBLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((RBLOCK,), tl.float32)
    gathered = tl.zeros((RBLOCK, VBLOCK), tl.float32)
    first = split * share
    for start in range(first, tl.minimum(first + share, columns), CBLOCK):
        column = start + cell
        cells = column < columns
        far = column.to(tl.int64)
        k = tl.load(key + far[:, None] * key_row + width[None, :], cells[:, None] & wide[None, :], 0.0)
        v = tl.load(value + far[:, None] * value_row + values[None, :], cells[:, None] & filled[None, :], 0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        inside = rows[:, None] & cells[None, :]
        if MASKED:
            scores += tl.load(mask + column[None, :] * mask_column, inside, 0.0).to(tl.float32)
        if CAUSAL:
            inside = inside & (column[None, :] <= line[:, None])
        scores = tl.where(inside, scores * 1.4426950408889634, float("-inf"))
        above = tl.maximum(top, tl.max(scores, 1))
        level = tl.where(above == float("-inf"), 0.0, above)
        weights = tl.exp2(scores - level[:, None])
        before = tl.exp2(top - level)
        total = total * before + tl.sum(weights, 1)
        gathered = gathered * before[:, None] + tl.dot(weights.to(v.dtype), v)
        top = above
    if WHOLE:
        found = gathered / tl.where(total == 0.0, 1.0, total)[:, None]
        out += batch * out_batch + line[:, None] * out_row + head[:, None] * out_head + values[None, :]
        tl.store(out, found.to(out.dtype.element_ty), rows[:, None] & filled[None, :])
    else:
        place = (pair.to(tl.int64) * tl.num_programs(1) + split) * RBLOCK + row
        tl.store(levels + place * 2, top)
        tl.store(levels + place * 2 + 1, total)
        tl.store(parts + place[:, None] * VBLOCK + values[None, :], gathered)


@triton.jit
def attention_combine_kernel(
    parts,
    levels,
    out,
    out_batch,
    out_row,
    out_head,
    splits,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    LENGTH: tl.constexpr,
    VALUES: tl.constexpr,
    RBLOCK: tl.constexpr,
    VBLOCK: tl.constexpr,
    SBLOCK: tl.constexpr,
):
    """One query's result from those of the splits: each is weighted by its sum, at the level of the largest score."""
    pair, row = tl.program_id(0), tl.program_id(1)
    split, values = tl.arange(0, SBLOCK), tl.arange(0, VBLOCK)
    there = split < splits
    place = (pair.to(tl.int64) * splits + split) * RBLOCK + row
    top = tl.load(levels + place * 2, there, float("-inf"))
    total = tl.load(levels + place * 2 + 1, there, 0.0)
    highest = tl.max(top, 0)
    factor = tl.exp2(top - tl.where(highest == float("-inf"), 0.0, highest))
    gathered = tl.load(parts + place[:, None] * VBLOCK + values[None, :], there[:, None], 0.0)
    whole = tl.sum(total * factor, 0)
    found = tl.sum(gathered * factor[:, None], 0) / tl.where(whole == 0.0, 1.0, whole)
    head, line = pair % HEADS * GROUP + row // LENGTH, row % LENGTH
    out += (pair // HEADS).to(tl.int64) * out_batch + line * out_row + head * out_head
    tl.store(out + values, found.to(out.dtype.element_ty), values < VALUES)


def attention_cached(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    scale: float,
) -> torch.Tensor:
    """Return softmax(query @ key^T * scale + mask) @ value, laid out as (B, L, H, E).

    The results of a query that sees no key are zeros.
    """
    if not query.is_cuda:
        mask = None if mask is None else mask.to(query.dtype)
        found = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, mask, 0.0, is_causal, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
        )
        return found.transpose(1, 2).contiguous().transpose(1, 2)
    processors = torch.cuda.get_device_properties(query.device).multi_processor_count
    return attention_by_splits(query, key, value, mask, is_causal, scale, processors)


def attention_by_splits(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    scale: float,
    processors: int,
) -> torch.Tensor:
    """As ``attention_cached``, by the kernels, for a device of so many processors."""
    batch, heads, length, width = query.shape
    groups, columns, values = key.shape[1], key.shape[2], value.shape[3]
    query, key, value = (x if x.stride(3) == 1 else x.contiguous() for x in (query, key, value))
    out = query.new_empty((batch, length, heads, values))
    block = ATTENTION_COLUMNS if max(width, values) <= ATTENTION_NARROW else ATTENTION_COLUMNS // 2
    pairs, tiles = batch * groups, triton.cdiv(columns, block)
    splits = max(1, min(tiles, triton.cdiv(processors, pairs)))
    share = triton.cdiv(tiles, splits) * block
    splits = triton.cdiv(columns, share)
    group = heads // groups
    padded = {"RBLOCK": max(16, triton.next_power_of_2(group * length))}
    padded["VBLOCK"] = max(16, triton.next_power_of_2(values))
    shape = {"HEADS": groups, "GROUP": group, "LENGTH": length, "VALUES": values, **padded}
    held = pairs * splits * padded["RBLOCK"] if splits > 1 else 0
    parts = query.new_empty((held, padded["VBLOCK"]), dtype=torch.float32)
    levels = query.new_empty((held, 2), dtype=torch.float32)
    bias = query if mask is None else mask.expand(batch, heads, length, columns)
    steps = [step for x in (query, key, value) for step in x.stride()[:3]]
    steps += [*bias.stride(), *out.stride()[:3]]
    attention_cached_kernel[(pairs, splits)](  # pyright: ignore[reportIndexIssue]
        *(query, key, value, bias, out, parts, levels, *steps, columns, scale, share),
        **{**shape, "WIDTH": width, "WBLOCK": max(16, triton.next_power_of_2(width))},
        **{"MASKED": mask is not None, "CAUSAL": is_causal, "WHOLE": splits == 1, "CBLOCK": block},
        **{"num_warps": 4, "num_stages": 3 if max(width, values) <= 128 else 2},
    )
    if splits > 1:
        attention_combine_kernel[(pairs, group * length)](  # pyright: ignore[reportIndexIssue]
            *(parts, levels, out, *out.stride()[:3], splits),
            **{**shape, "SBLOCK": triton.next_power_of_2(splits), "num_warps": 2},
        )
    return out.transpose(1, 2)
