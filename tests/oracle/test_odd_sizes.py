"""Rows and columns that no tile divides, through the whole pipeline, forward and backward, against float64.

Each family of operators is one program over one input, so that kernels fuse across them; the schedules are CP-SAT's and
greedy's in turn. A part of the sizes runs every time; all of them do with the marker "slow".
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from optfuse.runtime.environment import mode
from tests.oracle.judging import GREEDY, OPTIONS, assert_all_pass, judge

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")

SIZES = (1, 7, 127, 129, 1000)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

#: Rows, columns and dtype of what runs every time, and of which families.
FAST = {
    (1, 1, "fp32"): ("columns", "points"),
    (7, 127, "fp32"): ("rows",),
    (129, 7, "bf16"): ("columns",),
    (7, 7, "fp16"): ("moved",),
}


def along_rows(x: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
    """Reductions over the last dimension, and what follows them."""
    var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    return (
        torch.softmax(x, -1),
        F.log_softmax(x * 0.5, -1),
        F.layer_norm(x, x.shape[1:], scale, shift),
        x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * scale,
        (x - mean) / (var + 1),
        x.argmax(-1),
        x.amax(-1),
        x.logsumexp(-1),
    )


def along_columns(x: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
    """Reductions over the first dimension, and over both."""
    several = x.shape[0] > 1
    normal = F.batch_norm(x, None, None, scale, shift, training=True) if several else x * scale + shift
    return (
        normal,
        x.sum(0) * scale,
        torch.softmax(x, 0),
        x.var(0, correction=0),
        x.argmin(0),
        x.amin(0),
        x.mean(),
        x.float().square().sum().sqrt(),
    )


def point_by_point(x: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
    """Activations behind a bias."""
    y = x + shift
    return F.gelu(y), F.gelu(y, approximate="tanh"), F.silu(y) * scale, torch.tanh(y).exp(), F.softplus(x), x.sigmoid()


def moved(x: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
    """Elements at other places: transposed, joined, padded, gathered."""
    n, m = x.shape
    rows, columns = torch.arange(n).flip(0) // 2, (torch.arange(m) * 3) % m
    y = torch.cat([x, (x * scale)[: n // 2 + 1], shift.expand(1, m)])
    return (
        x.t().contiguous() + 1,
        torch.softmax(x.t().exp() * 0.1, -1),
        y,
        F.pad(y, (1, 2, 3, 0), value=0.5).sum(0),
        F.embedding(rows, x) * scale,
        x[:, columns].sum(1),
        x.gather(1, columns.expand(n, m)) + shift,
        x.roll((1, -2), (0, 1)).flip(1) * x,
        x[::2, 1:].tanh(),
    )


FAMILIES: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "rows": along_rows,
    "columns": along_columns,
    "points": point_by_point,
    "moved": moved,
}


class Family(nn.Module):
    """A family with a scale and a shift a column."""

    def __init__(self, function: Callable[..., Any], columns: int, dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(columns)
        self.function = function
        self.scale = nn.Parameter((1 + torch.randn(columns, generator=generator) / 4).to(dtype))
        self.shift = nn.Parameter((torch.randn(columns, generator=generator) / 4).to(dtype))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """The family's results."""
        return self.function(x, self.scale, self.shift)


def cases() -> list[Any]:
    found = []
    for rows, columns, dtype, family in product(SIZES, SIZES, DTYPES, FAMILIES):
        if dtype == "fp16" and rows != columns:
            continue
        fast = family in FAST.get((rows, columns, dtype), ())
        marks = () if fast else (pytest.mark.slow,)
        found.append(pytest.param(rows, columns, dtype, family, marks=marks, id=f"{family}-{rows}x{columns}-{dtype}"))
    return found


@pytest.mark.parametrize(("rows", "columns", "dtype", "family"), cases())
def test_family(rows: int, columns: int, dtype: str, family: str) -> None:
    generator = torch.Generator().manual_seed(rows * 1009 + columns)
    x = (torch.randn(rows, columns, generator=generator) * 1.5 + 0.25).to(DTYPES[dtype]).requires_grad_()
    model = Family(FAMILIES[family], columns, DTYPES[dtype])
    turn = SIZES.index(rows) + SIZES.index(columns) + list(FAMILIES).index(family)
    assert_all_pass(judge(model, (x,), train=True, options=GREEDY if turn % 2 else OPTIONS))


@pytest.mark.spread(6)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(("rows", "columns"), [(7, 129), (129, 1000), (1, 127)])
def test_discontiguous_inputs(rows: int, columns: int, dtype: str) -> None:
    generator = torch.Generator().manual_seed(rows)
    wide = torch.randn(columns, 2 * rows, generator=generator).to(DTYPES[dtype])

    def work(x: Tensor, row: Tensor) -> tuple[Tensor, ...]:
        return torch.softmax(x + row, -1), x.sum(0), (x * row).t().contiguous(), x.argmax(0), F.silu(x).mean()

    x = wide.t()[::2]
    assert x.shape == (rows, columns)
    assert_all_pass(judge(work, (x, wide[:, :1].t().expand(rows, columns))))


@pytest.mark.parametrize("columns", [1, pytest.param(129, marks=pytest.mark.slow)])
def test_many_results_of_one_reduction(columns: int) -> None:
    """More outputs of one kernel than a reduction has numbers: every tail is masked."""
    x = torch.randn(5, 3, columns, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def work(x: Tensor) -> tuple[Tensor, ...]:
        y = torch.softmax(x, -1)
        return y, y.exp(), y.sum(1), y.sum((0, 1)), (y > 0.01), y.sum(-1), x.amax((1, 2)), x.prod(-1)

    assert_all_pass(judge(work, (x,), train=True))
