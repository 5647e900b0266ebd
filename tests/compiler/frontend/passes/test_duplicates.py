"""Equal computations merge; random draws and separately visible results do not."""

from __future__ import annotations

import torch

from optfuse.compiler.frontend.passes.duplicates import merge_duplicates
from tests.compiler.frontend.passes.graphs import operators, run, traced

X = torch.arange(12.0).reshape(3, 4)


def test_equal_chains_merge() -> None:
    captured = traced(lambda x: (x.exp().sum(1) + x.exp().sum(1),), X)
    after = merge_duplicates(captured)
    assert operators(captured) == ["exp.default", "sum.dim_IntList"] * 2 + ["add.Tensor"]
    assert operators(after) == ["exp.default", "sum.dim_IntList", "add.Tensor"]
    torch.testing.assert_close(run(after, X), run(captured, X))


def test_different_constants_do_not_merge() -> None:
    captured = traced(lambda x: ((x * 1) + (x * 1.0) + (x * True) + x.sum(0) + x.sum(1, keepdim=True),), X)
    assert operators(merge_duplicates(captured)) == operators(captured)


def test_random_draws_do_not_merge() -> None:
    captured = traced(lambda x: (torch.rand_like(x) + torch.rand_like(x),), X)
    assert operators(merge_duplicates(captured)).count("rand_like.default") == 2


def test_two_visible_results_keep_their_own_memory() -> None:
    captured = traced(lambda x: (x + 1, x + 1, (x + 1).sum()), X)
    after = merge_duplicates(captured)
    assert operators(after) == ["add.Tensor", "add.Tensor", "sum.default"]
    first, second, _ = run(after, X)
    first.zero_()
    torch.testing.assert_close(second, X + 1)


def test_two_views_of_equal_results_keep_their_own_memory() -> None:
    captured = traced(lambda x: ((x + 1).view(-1), (x + 1).view(4, 3)), X)
    assert operators(merge_duplicates(captured)).count("add.Tensor") == 2


def test_results_kept_for_backward_merge() -> None:
    captured = traced(lambda x: (x + 1, x + 1, x + 1), X, visible=frozenset({0}))
    assert operators(merge_duplicates(captured)) == ["add.Tensor"]
