"""Products of the same few rows become one call; results of their own, other operands and many rows stay."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from optfuse.api import optimize
from optfuse.compiler.frontend.passes.joint_products import join_products
from tests.compiler.frontend.passes.graphs import operators, run, traced

JOINT = "optfuse.joint_products.default"


def three(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    """Their sums, so that no product itself is a result."""
    return tuple(torch.mm(x, w.t()).float().sum(1) for w in weights)


def weights(*columns: int, terms: int = 512) -> list[Tensor]:
    return [torch.randn(n, terms).bfloat16() for n in columns]


@pytest.mark.parametrize("rows", [2, 64, 128])
def test_products_of_the_same_rows_are_one_call(rows: int) -> None:
    x, given = torch.randn(rows, 512).bfloat16(), weights(64, 16, 16)
    captured = join_products(traced(three, x, *given))
    assert operators(captured).count(JOINT) == 1
    assert "mm.default" not in operators(captured)
    for found, expected in zip(run(captured, x, *given), three(x, *given), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=0.5)


def test_biases_are_added_and_products_without_one_are_another_call() -> None:
    def function(x: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        found = [torch.addmm(b, x, w.t()) for w, b in zip(given[:2], given[4:], strict=True)]
        return tuple(one.float().sum(1) for one in (*found, *(torch.mm(x, w.t()) for w in given[2:4])))

    x = torch.randn(4, 512).bfloat16()
    given = [*weights(64, 32, 16, 48), torch.randn(64).bfloat16(), torch.randn(32).bfloat16()]
    captured = join_products(traced(function, x, *given))
    assert operators(captured).count(JOINT) == 2
    for found, expected in zip(run(captured, x, *given), function(x, *given), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=0.5)


def test_five_products_are_a_call_of_four_and_one_that_stays() -> None:
    x, given = torch.randn(4, 512).bfloat16(), weights(16, 16, 16, 16, 16)
    found = operators(join_products(traced(three, x, *given)))
    assert (found.count(JOINT), found.count("mm.default")) == (1, 1)


@pytest.mark.parametrize(
    ("rows", "terms", "columns"),
    [
        (1, 512, (64, 64)),
        (129, 512, (64, 64)),
        (65, 512, (4096, 4096)),
        (4, 512, (1 << 16, 1 << 17)),
        (4, 256, (64, 64)),
        (4, 512, (64, 50)),
    ],
)
def test_other_sizes_stay(rows: int, terms: int, columns: tuple[int, ...]) -> None:
    x = torch.randn(rows, terms).bfloat16()
    assert JOINT not in operators(join_products(traced(three, x, *weights(*columns, terms=terms))))


def test_results_computed_weights_and_other_types_stay() -> None:
    x, (one, other) = torch.randn(4, 512).bfloat16(), weights(64, 64)
    left = traced(lambda x, a, b: (torch.mm(x, a.t()), torch.mm(x, b.t()).view(-1)), x, one, other)
    made = traced(lambda x, a, b: three(x, a * 2, b * 2), x, one, other)
    apart = traced(lambda x, y, a, b: (*three(x, a), *three(y, b)), x, x + 1, one, other)
    flat = [w.t().contiguous() for w in (one, other)]  # sums run across rows in memory
    across = traced(lambda x, a, b: tuple(torch.mm(x, w).float().sum(1) for w in (a, b)), x, *flat)
    wide = traced(three, x.float(), one.float(), other.float())
    for captured in (left, made, apart, across, wide):
        assert JOINT not in operators(join_products(captured))


@pytest.mark.parametrize("kind", ["one", "spread", "apart"])
def test_biases_that_are_no_row_of_numbers_stay(kind: str) -> None:
    def function(x: Tensor, bias: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.addmm(bias, x, w.t()).float().sum(1) for w in given)

    x, numbers = torch.randn(4, 512).bfloat16(), torch.randn(128).bfloat16()
    bias = {"one": numbers[:1], "spread": numbers[:1].expand(64), "apart": numbers[::2]}[kind]
    assert JOINT not in operators(join_products(traced(function, x, bias, *weights(64, 64))))


def test_large_weights_of_one_byte_are_read_as_such() -> None:
    def function(x: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.mm(x, w.to(x.dtype).t()).float().sum(1) for w in given)

    x, given = torch.randn(4, 512).bfloat16(), [torch.empty(1 << 17, 512, dtype=torch.int8) for _ in range(2)]
    assert operators(join_products(traced(function, x, *given))).count(JOINT) == 1


def test_weights_of_one_byte_are_not_copied() -> None:
    def function(x: Tensor, weight: Tensor) -> tuple[Tensor]:
        return (torch.mm(x, weight.to(x.dtype).t()) * 2,)

    x, weight = torch.randn(4, 512).bfloat16(), torch.randint(-127, 128, (64, 512), dtype=torch.int8)
    captured = join_products(traced(function, x, weight))
    assert JOINT in operators(captured)
    assert "_to_copy.default" not in operators(captured)
    torch.testing.assert_close(run(captured, x, weight)[0], function(x, weight)[0], rtol=1e-2, atol=0.5)


class Block(nn.Module):
    """What a decoder's layer multiplies by weights, without its attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(512)
        self.query, self.key, self.value = (nn.Linear(512, n) for n in (512, 128, 128))
        self.gate, self.up = (nn.Linear(512, 1024, bias=False) for _ in range(2))
        self.down = nn.Linear(1024, 512, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = self.query(h), self.key(h), self.value(h)
        x = x + torch.softmax(q.float(), -1).to(x.dtype) * k.sum(-1, keepdim=True) + v.mean(-1, keepdim=True)
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def test_a_layer_of_a_decode_step_has_three_calls_and_is_exact() -> None:
    torch.manual_seed(0)
    model, x = Block().bfloat16().eval(), torch.randn(8, 1, 512).bfloat16()
    schedule = optimize(model, (x,))
    assert schedule.source.count("    joint_products(") == 2
    torch.compiler.reset()
    with torch.no_grad():
        found, eager = torch.compile(model, backend="optfuse")(x), model(x)
        exact = model.double()(x.double())
    assert (found.double() - exact).norm() <= 1.3 * (eager.double() - exact).norm()
