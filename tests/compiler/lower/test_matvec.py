"""Products of a matrix and a vector as loops, against eager execution; other products stay a library's."""

from __future__ import annotations

import pytest
import torch

from tests.compiler.lower.eager import check, nests

TOLERANCE = {
    torch.float32: {"rtol": 1e-5, "atol": 1e-4},
    torch.bfloat16: {"rtol": 2e-2, "atol": 1e-1},
    torch.float64: {"rtol": 1e-12, "atol": 1e-12},
}


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("terms", [64, 200])
@pytest.mark.parametrize("columns", [1, 7])
def test_a_row_times_a_transposed_matrix(dtype: torch.dtype, terms: int, columns: int) -> None:
    x, weight = torch.randn(1, terms).to(dtype), torch.randn(columns, terms).to(dtype)
    (nest,) = nests(check(lambda x, weight: x @ weight.t(), x, weight, **TOLERANCE[dtype]))
    assert nest.rsizes == (terms,)


def test_a_matrix_times_a_column() -> None:
    matrix, x = torch.randn(9, 70), torch.randn(70, 1)
    (nest,) = nests(check(lambda matrix, x: matrix @ x, matrix, x, rtol=1e-5, atol=1e-4))
    assert (nest.sizes, nest.rsizes) == ((9,), (70,))


@pytest.mark.parametrize("shape", [(5,), (1, 5), (1, 1)], ids=str)
def test_with_a_bias(shape: tuple[int, ...]) -> None:
    bias, x, weight = torch.randn(shape), torch.randn(1, 70), torch.randn(5, 70)
    (nest,) = nests(check(lambda b, x, w: torch.addmm(b, x, w.t()), bias, x, weight, rtol=1e-5, atol=1e-4))
    assert nest.sizes == (5,)


@pytest.mark.parametrize(
    ("left", "right"), [((2, 70), (70, 5)), ((1, 70), (70, 5)), ((1, 8), (8, 5))], ids=["rows", "strided", "short"]
)
def test_other_products_are_calls(left: tuple[int, int], right: tuple[int, int]) -> None:
    check(lambda a, b: a @ b, torch.randn(left), torch.randn(right), library=["aten.mm.default"], rtol=1e-5, atol=1e-4)


def test_integers_are_calls() -> None:
    x, weight = torch.randint(0, 9, (1, 70)), torch.randint(0, 9, (5, 70))
    check(lambda x, weight: x @ weight.t(), x, weight, library=["aten.mm.default"], rtol=0, atol=0)


def test_scaled_terms_are_calls() -> None:
    bias, x, weight = torch.randn(5), torch.randn(1, 70), torch.randn(5, 70)
    library = ["aten.addmm.default"]
    check(lambda b, x, w: torch.addmm(b, x, w.t(), beta=2), bias, x, weight, library=library, rtol=1e-5, atol=1e-4)
