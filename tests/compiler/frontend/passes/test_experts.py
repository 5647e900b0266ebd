"""Grouped matmuls of few rows become sums over the weights of each row's expert; others stay a library's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from optfuse.compiler.frontend.passes.experts import sum_over_experts
from tests.compiler.frontend.passes.graphs import operators, run, traced

GROUPED = "_grouped_mm.default"


def product(x: Tensor, weights: Tensor, ends: Tensor) -> tuple[Tensor]:
    return (torch.ops.aten._grouped_mm.default(x, weights.transpose(1, 2), ends),)  # noqa: SLF001 - it has no public name


def inputs(rows: int, experts: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 32).to(torch.bfloat16), torch.randn(experts, 48, 32).to(torch.bfloat16)


@pytest.mark.parametrize(
    "counts", [(0, 1, 0, 0, 2, 0, 0, 0), (3, 0, 0, 0, 0, 0, 0, 0), (0, 0, 0, 0, 0, 0, 0, 3), (1, 0, 1, 0, 0, 0, 1, 0)]
)
def test_each_row_meets_its_expert(counts: tuple[int, ...]) -> None:
    x, weights = inputs(sum(counts), len(counts))
    ends = torch.tensor(counts).cumsum(0).to(torch.int32)
    captured = sum_over_experts(traced(product, x, weights, ends))
    assert GROUPED not in operators(captured)
    (found,) = run(captured, x, weights, ends)
    experts = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    expected = torch.einsum("tk,tnk->tn", x.double(), weights[experts].double())
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), expected, rtol=1e-2, atol=1e-2)


def test_rows_of_no_expert_are_within_bounds() -> None:
    x, weights = inputs(3, 8)
    ends = torch.tensor([0, 1, 1, 1, 1, 1, 1, 2], dtype=torch.int32)
    captured = sum_over_experts(traced(product, x, weights, ends))
    (found,) = run(captured, x, weights, ends)
    torch.testing.assert_close(found[1].double(), weights[7].double() @ x[1].double(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("rows", "experts"), [(16, 8), (5, 8), (256, 8)])
def test_some_rows_of_each_expert_are_a_call_of_ours(rows: int, experts: int) -> None:
    x, weights = inputs(rows, experts)
    ends = torch.linspace(0, rows, experts + 1)[1:].to(torch.int32)
    captured = sum_over_experts(traced(product, x, weights, ends))
    assert operators(captured)[-1] == "optfuse.grouped_products.default"
    (found,) = run(captured, x, weights, ends)
    torch.testing.assert_close(found, product(x, weights, ends)[0])


@pytest.mark.parametrize(("rows", "width"), [(257, 32), (16, 40)])
def test_many_rows_and_rows_of_no_whole_vectors_stay(rows: int, width: int) -> None:
    x, weights = torch.randn(rows, width).bfloat16(), torch.randn(8, 48, width).bfloat16()
    ends = torch.linspace(0, rows, 9)[1:].to(torch.int32)
    assert GROUPED in operators(sum_over_experts(traced(product, x, weights, ends)))


def test_ends_that_do_not_lie_side_by_side_stay() -> None:
    x, weights = inputs(16, 8)
    ends = torch.arange(2, 18, 1, dtype=torch.int32)[::2]
    assert GROUPED in operators(sum_over_experts(traced(product, x, weights, ends)))


def test_weights_whose_sums_run_across_rows_stay() -> None:
    def across(x: Tensor, weights: Tensor, ends: Tensor) -> tuple[Tensor]:
        return (torch.ops.aten._grouped_mm.default(x, weights, ends),)  # noqa: SLF001 - it has no public name

    x, weights = torch.randn(2, 48).to(torch.bfloat16), inputs(1, 8)[1]
    ends = torch.tensor([0, 1, 1, 1, 1, 1, 1, 2], dtype=torch.int32)
    assert GROUPED in operators(sum_over_experts(traced(across, x, weights, ends)))
