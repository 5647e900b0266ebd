"""Sums of products of spread-out tensors become matmuls; other sums stay loops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from optfuse.compiler.frontend.passes.contractions import contract_products
from tests.compiler.frontend.passes.graphs import operators, run, traced

MATMULS = {torch.float32: "optfuse.exact_bmm.default", torch.bfloat16: "bmm.default"}


def scores(a: Tensor, b: Tensor) -> tuple[Tensor]:
    """(B, L, H, N), (B, S, H, N) -> (B, L, S, H), as Mamba 2's C and B are multiplied."""
    return ((a[:, :, None] * b[:, None]).sum(-1),)


def states(a: Tensor, b: Tensor) -> tuple[Tensor]:
    """(B, L, H, N), (B, L, H, P) -> (B, H, N, P); the sum is over a dimension in the middle, which stays as one."""
    return ((a[..., None] * b[..., None, :]).sum(1, keepdim=True),)


def expanded(a: Tensor, b: Tensor) -> tuple[Tensor]:
    """The same as ``scores``, of tensors that are expanded first; the factors' order turned."""
    full = (a.shape[0], a.shape[1], b.shape[1], a.shape[2], a.shape[3])
    return ((b[:, None].expand(full) * a[:, :, None].expand(full)).sum(4),)


def two_sums(a: Tensor, b: Tensor) -> tuple[Tensor]:
    """Over two dimensions at once: (B, L, H, N), (B, S, H, N) -> (B, S, L)."""
    return ((b[:, :, None] * a[:, None]).sum((-1, -2)),)


CASES: tuple[Callable[..., tuple[Tensor]], ...] = (scores, states, expanded, two_sums)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", CASES)
def test_products_become_a_matmul(function: Callable[..., tuple[Tensor]], dtype: torch.dtype) -> None:
    a, b = torch.randn(2, 128, 4, 64).to(dtype), torch.randn(2, 128, 4, 64).to(dtype)
    captured = contract_products(traced(function, a, b))
    assert MATMULS[dtype] in operators(captured)
    assert "mul.Tensor" not in operators(captured)
    (found,), (eager,), (expected,) = run(captured, a, b), function(a, b), function(a.double(), b.double())
    assert found.dtype == eager.dtype
    assert found.stride() == eager.stride()
    assert (found - expected).norm() <= 1.1 * (eager - expected).norm() + 1e-6 * expected.norm()


def kept_products(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    products = a[:, :, None] * b[:, None]
    return products.sum(-1), products


def of_one_factor(a: Tensor, b: Tensor) -> tuple[Tensor]:
    return ((a[:, :, None] * b[:, None]).sum(1),)


def of_equal_shapes(a: Tensor, b: Tensor) -> tuple[Tensor]:
    return ((a * b).sum(-1),)


def of_all(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return torch.sum(a[:, :, None] * b[:, None], dim=None), (a[:, :, None] * b[:, None]).sum([])


def of_single_numbers(a: Tensor, b: Tensor) -> tuple[Tensor]:
    return ((a[0, 0, 0] * b[0, 0, 0]).sum(-1),)


def of_other_type(a: Tensor, b: Tensor) -> tuple[Tensor]:
    return ((a[:, :, None] * b[:, None]).sum(-1, dtype=torch.float64),)


@pytest.mark.parametrize(
    "function", [kept_products, of_one_factor, of_equal_shapes, of_all, of_single_numbers, of_other_type]
)
def test_other_sums_stay(function: Callable[..., tuple[Tensor, ...]]) -> None:
    a, b = torch.randn(2, 128, 4, 64), torch.randn(2, 128, 4, 64)
    assert MATMULS[torch.float32] not in operators(contract_products(traced(function, a, b)))


def test_few_products_stay() -> None:
    a, b = torch.randn(2, 8, 4, 64), torch.randn(2, 8, 4, 64)
    assert MATMULS[torch.float32] not in operators(contract_products(traced(scores, a, b)))
