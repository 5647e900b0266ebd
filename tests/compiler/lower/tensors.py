"""Hypothesis strategies of small tensors for lowering tests."""

from __future__ import annotations

import math

import torch
from hypothesis import strategies as st

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.uint8)
BOOL = (torch.bool,)
EXACT = {"rtol": 0, "atol": 0}


@st.composite
def tensors(draw, dtypes=FLOATS + INTEGERS + BOOL, rank=(0, 4), smallest=0, shape=None):
    """Small tensors, contiguous or permuted, with empty and single dimensions, ties, nan and inf."""
    if shape is None:
        shape = draw(st.lists(st.integers(smallest, 5), min_size=rank[0], max_size=rank[1]))
    dtype = draw(st.sampled_from(dtypes))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    order = draw(st.permutations(range(len(shape))))
    values = torch.randint(-3 if dtype != torch.uint8 else 0, 4, [shape[d] for d in order], generator=generator)
    if dtype.is_floating_point and draw(st.booleans()):
        noise = torch.randn(values.shape, generator=generator)
        noise[noise > 1.5] = draw(st.sampled_from([1.5, math.nan, math.inf, -math.inf]))
        values = noise
    return values.to(dtype).permute([order.index(d) for d in range(len(shape))])


@st.composite
def positions(draw, size, shape, negative=False, dtypes=(torch.int64,)):
    """A tensor of ``shape`` of indices into ``size`` elements."""
    low = -size if negative else 0
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    return torch.randint(low, size, tuple(shape), generator=generator).to(draw(st.sampled_from(dtypes)))


def shapes(rank=(0, 4), smallest=0):
    """Shapes of that many dimensions of up to 5 elements each."""
    return st.lists(st.integers(smallest, 5), min_size=rank[0], max_size=rank[1])
