"""Sums at constant places are sums of gathered values, and equal."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from optfuse.compiler.frontend.passes.constants import fold_constants
from optfuse.compiler.frontend.passes.known_places import gather_known_sums
from tests.compiler.frontend.passes.graphs import traced
from tests.strategies import share

aten = torch.ops.aten


def sums(rewritten) -> list:
    adding = {aten.index_put.default, aten._unsafe_index_put.default, aten.index_add.default}  # noqa: SLF001
    return [node for node in rewritten.graph.graph.nodes if node.target in adding]


def check(function, values: Tensor, places: dict[str, Tensor], *, gathered: bool) -> None:
    before = fold_constants(traced(function, values, constants=places))
    after = gather_known_sums(before)
    assert bool(sums(after)) != gathered
    (wanted,), (got,) = (captured.graph(values) for captured in (before, after))
    assert got.stride() == wanted.stride()
    assert torch.equal(got, wanted)


@given(st.lists(st.integers(-5, 4), min_size=1, max_size=7), st.integers(0, 2), st.booleans())
@settings(max_examples=share(40), derandomize=True, deadline=None)
def test_one_dimension(places, dim, put):
    shape = [3, 2, 4]
    shape[dim] = len(places)
    values = torch.randint(-4, 5, shape).float()  # whole numbers: exact in any order
    shape[dim] = 5

    def add(values: Tensor, at: Tensor) -> tuple[Tensor]:
        zeros = aten.full.default(shape, 0, dtype=torch.float32)
        if put:
            return (aten.index_put.default(zeros, [None] * dim + [at], values, True),)
        return (aten.index_add.default(zeros, dim, at, values),)

    at = torch.tensor(places)
    most = int(torch.bincount(at % 5).max())
    check(add, values, {"at": at if put else at % 5}, gathered=most * 5 <= 4 * len(places))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_grid(dtype):
    rows, columns = torch.tensor([[0], [0], [1], [2]]), torch.tensor([3, 0, 0, 1, 2, 2])

    def add(values: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor]:
        zeros = aten.full.default([2, 3, 4], 0, dtype=dtype)
        return (aten._unsafe_index_put.default(zeros, [None, rows, columns], values, True),)  # noqa: SLF001

    values = torch.randint(-4, 5, (2, 4, 6)).to(dtype)
    check(add, values, {"rows": rows, "columns": columns}, gathered=True)


@pytest.mark.parametrize("case", ["many meet", "no grid", "another base", "not added"])
def test_other_sums_stay(case):
    at = torch.zeros(30, dtype=torch.int64) if case == "many meet" else torch.tensor([[0, 1], [2, 0]])

    def add(values: Tensor, at: Tensor) -> tuple[Tensor]:
        zeros = aten.full.default([3, 2], 1 if case == "another base" else 0, dtype=torch.float32)
        return (aten.index_put.default(zeros, [at], values, case != "not added"),)

    if case in ("another base", "not added"):
        at = torch.tensor([2, 0, 1])
    check(add, torch.ones(*at.shape, 2), {"at": at}, gathered=False)
