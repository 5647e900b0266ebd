"""What depends on no input is computed once, as far as that pays."""

from __future__ import annotations

import pytest
import torch

from optfuse.compiler.frontend.passes.constants import LARGEST_CONSTANT, fold_constants
from tests.compiler.frontend.passes.graphs import operators, run, traced

X = torch.arange(12.0).reshape(3, 4)
TABLE = {"table": torch.tensor([1.0, 5.0, 2.0, 8.0])}


def test_long_expression_becomes_a_constant() -> None:
    captured = traced(lambda x: (x + (torch.arange(4) * 2 + 1).float().log().sin().cumsum(0),), X)
    after = fold_constants(captured)
    assert operators(after) == ["add.Tensor"]
    (constant,) = after.constants.values()
    torch.testing.assert_close(constant, (torch.arange(4) * 2 + 1).float().log().sin().cumsum(0))
    torch.testing.assert_close(run(after, X), run(captured, X))


def test_constant_expression_of_a_constant() -> None:
    captured = traced(lambda x, table: (x * table.sort().values.cumsum(0),), X, constants=TABLE)
    after = fold_constants(captured)
    assert operators(after) == ["mul.Tensor"]
    assert "table" not in after.constants
    torch.testing.assert_close(run(after, X), run(captured, X))


def test_a_constant_and_what_is_computed_from_it_are_both_used() -> None:
    def function(x: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = table.sort().values
        second = first.cumsum(0)
        return x * first, x + second, x - second.flip(0).log()

    captured = traced(function, X, constants=TABLE)
    after = fold_constants(captured)
    assert sorted(operators(after)) == ["add.Tensor", "mul.Tensor", "sub.Tensor"]
    torch.testing.assert_close(run(after, X), run(captured, X))


def test_uniform_value_becomes_full() -> None:
    captured = traced(lambda x: (x + torch.ones(3, 4).cumsum(0).amax() * 2,), X)
    after = fold_constants(captured)
    assert operators(after) == ["full.default", "add.Tensor"]
    assert after.constants == {}
    torch.testing.assert_close(run(after, X), (X + 6,))


def test_positions_stay_expressions() -> None:
    captured = traced(lambda x: (x * (torch.arange(4)[None, :] <= torch.arange(3)[:, None]),), X)
    assert operators(fold_constants(captured)) == operators(captured)


def test_large_values_stay_expressions() -> None:
    side = int((LARGEST_CONSTANT // 4) ** 0.5) + 1

    def function(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x + torch.arange(side)[:, None].sin().cos().tan().exp() * torch.arange(side).log1p(),)

    after = fold_constants(traced(function, torch.zeros(1)))
    assert all(value.numel() < side * side for value in after.constants.values())
    assert "mul.Tensor" in operators(after)


def test_random_values_are_not_folded() -> None:
    captured = traced(lambda x: (x + torch.rand(4).cumsum(0),), X)
    assert operators(fold_constants(captured)) == operators(captured)


def test_returned_constant_is_the_callers_own() -> None:
    after = fold_constants(traced(lambda x, table: (table.cumsum(0), x.exp()), X, constants=TABLE))
    first, _ = run(after, X)
    first.zero_()
    torch.testing.assert_close(run(after, X)[0], TABLE["table"].cumsum(0))


@pytest.mark.parametrize("repeated", [False, True])
def test_rows_stay_aligned(repeated: bool) -> None:
    """Attention on a GPU takes a mask whose rows were padded, and no other."""
    x = torch.randn(21, 3)
    captured = traced(lambda x: (_padded(x, repeated),), x)
    after = fold_constants(captured)
    (mask,) = after.constants.values()
    assert mask.stride() == ((64, 32, 1) if repeated else (32, 1))
    torch.testing.assert_close(run(after, x)[-1], _padded(x, repeated))


def _padded(x: torch.Tensor, repeated: bool) -> torch.Tensor:
    mask = torch.arange(42.0).view(2, 21).sin().cos().exp().sqrt().cumsum(0)
    padded = torch.nn.functional.pad(mask, (0, 11))[:, :21]
    return torch.matmul(padded.expand(3, 2, 21) if repeated else padded, x)
