"""Inference in two halves: each rank gets the same numbers, and a graph that no rule covers stays whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from optfuse.compiler.frontend.captured import Captured
from optfuse.compiler.frontend.passes.halves import compute_in_halves
from tests.compiler.frontend.passes.graphs import operators, traced
from tests.compiler.frontend.passes.test_collectives import count, on_two_ranks, reduced

pytest.importorskip("torch.distributed._functional_collectives")

aten = torch.ops.aten


def halved(captured: Captured) -> Captured:
    return compute_in_halves(captured, worth=0)


def block(x: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Attention and a perceptron of a transformer that is split among ranks, with a norm before each."""
    batch, length, width = x.shape

    def norm(y: Tensor) -> Tensor:
        return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)

    def heads(weight: Tensor) -> Tensor:
        y = aten.mm(norm(x).view(batch * length, width), aten.t(weight)).view(batch, length, -1)
        return y.view(batch, length, 2, -1).transpose(1, 2)

    scores = aten.bmm(heads(q).reshape(batch * 2, length, -1), heads(k).reshape(batch * 2, length, -1).transpose(1, 2))
    mixed = aten.bmm(torch.softmax(scores, -1), heads(v).reshape(batch * 2, length, -1))
    rows = mixed.view(batch, 2, length, -1).transpose(1, 2).reshape(batch * length, -1)
    x = x + reduced(aten.mm(rows, o).view(batch, length, width))
    y = aten.addmm(up[0], norm(x).view(-1, width), up)
    return x + reduced(aten.mm(torch.relu(y), down).view(batch, length, width))


def model(tokens: Tensor, table: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    x = aten.embedding(table, tokens)
    for layer in range(2):
        x = block(x, *weights[6 * layer : 6 * layer + 6])
    return (x @ table.t(), x.sum(1))


def weights() -> list[Tensor]:
    torch.manual_seed(0)
    shapes = [(4, 8), (4, 8), (4, 8), (4, 8), (8, 8), (8, 8)] * 2
    return [torch.randn(11, 8, dtype=torch.float64), *(torch.randn(shape, dtype=torch.float64) for shape in shapes)]


def test_a_transformer_split_among_ranks_is_computed_in_halves() -> None:
    tokens = torch.randint(0, 11, (4, 3))
    captured = parameterized(traced(model, tokens, *weights()))
    halves = halved(captured)
    halves.graph.graph.lint()
    assert count(captured, "all_reduce") == 4
    assert count(halves, "all_reduce") == 8
    given = [(tokens, tokens), *((a, a + 1) for a in weights())]
    for expected, found in zip(on_two_ranks(captured, *given), on_two_ranks(halves, *given), strict=True):
        torch.testing.assert_close(found, expected)


def test_the_halves_meet_after_the_last_all_reduce() -> None:
    """The projection onto a vocabulary, whose result is the largest of all, is computed once."""
    halves = halved(parameterized(traced(model, torch.randint(0, 11, (4, 3)), *weights())))
    last = max(k for k, name in enumerate(operators(halves)) if "wait_tensor" in name)
    assert sum("cat" in name for name in operators(halves)[last:]) >= 1
    assert sum(name == "mm.default" for name in operators(halves)[last:]) <= 1


def over_the_batch(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return (reduced(aten.mm(x - x.mean(0, keepdim=True), w)),)


def flipped(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return (reduced(aten.mm(aten.flip(x, [0]), w)),)


def crossed(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Every row with every other one."""
    return (reduced(aten.mm(aten.mm(x, aten.t(x)), x)),)


def with_rows_of_its_own(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Another tensor has a row for each of the batch, and is no input of the user's."""
    return (reduced(aten.mm(x + w, w)),)


def folded(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Rows are dealt out to two columns of a batch of two: a half of one is no half of the other."""
    return (reduced(aten.mm(x.view(2, 2, 4).transpose(0, 1).reshape(4, 4), w)),)


def drawn(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return (reduced(aten.mm(x * torch.rand_like(x), w)),)


@pytest.mark.parametrize("function", [over_the_batch, flipped, crossed, with_rows_of_its_own, drawn])
def test_what_is_no_batch_stays_whole(function: Callable[..., Any]) -> None:
    captured = parameterized(traced(function, torch.randn(4, 4), torch.randn(4, 4)))
    assert operators(halved(captured)) == operators(captured)


def test_a_reshape_that_mixes_the_batch_with_others_computes_the_same() -> None:
    captured = parameterized(traced(folded, torch.randn(4, 4), torch.randn(4, 4)))
    given = [(torch.randn(4, 4), torch.randn(4, 4)) for _ in range(2)]
    for expected, found in zip(on_two_ranks(captured, *given), on_two_ranks(halved(captured), *given), strict=True):
        torch.testing.assert_close(found, expected)


def parameterized(captured: Captured) -> Captured:
    """The same with all inputs but the first as parameters."""
    inputs = [source if k == 0 else replace(source, kind="parameter") for k, source in enumerate(captured.inputs)]
    return replace(captured, inputs=tuple(inputs))


def test_short_transfers_leave_a_graph_whole() -> None:
    captured = parameterized(traced(model, torch.randint(0, 11, (4, 3)), *weights()))
    assert operators(compute_in_halves(captured)) == operators(captured)
