"""Gradients of tables without a sort, against eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from optfuse.compiler.frontend.operators.tables import add_at_places, embedding_gradient
from optfuse.compiler.frontend.tracing.training import capture_training
from tests.compiler.frontend.running import targets
from tests.oracle.judging import check

aten = torch.ops.aten

#: Rows of a table and places, for which a product serves, additions in place, and additions that go round the table.
EMBEDDINGS = [
    *((3, (60,)), (2, (4, 9)), (1, (16,)), (2, (2, 2, 8))),
    *((19, (7,)), (19, (3, 5)), (19, (1, 1)), (19, (2, 2, 2))),
    *((1 << 18, (7,)), (1 << 18, (3, 5)), (1 << 18, (1, 1))),
]
#: Sizes of a table, and how often its places are repeated, for the same three.
TABLES = [
    *(((4, 3), 11), ((6,), 16), ((9, 2, 3), 24)),
    *(((4, 3), 1), ((6,), 1), ((9, 2, 3), 1)),
    *(((1 << 19, 3), 1), (((1 << 20) + 1,), 1), ((1 << 17, 3, 3), 1)),
]


@pytest.mark.spread(5)
@pytest.mark.parametrize("padded", ["none", "first", "last"])
@pytest.mark.parametrize(("count", "shape"), EMBEDDINGS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_embedding_gradient(padded: str, count: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    padding = {"none": -1, "first": 0, "last": count - 1}[padded]
    places, grad = torch.randint(count, shape), torch.randn(*shape, 6).to(dtype)
    places.view(-1)[0] = count - 1
    found = embedding_gradient(grad, places, count, padding, False)
    expected = aten.embedding_dense_backward.default(grad.double(), places, count, padding, False)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-12, atol=1e-3)


@pytest.mark.spread(4)
@pytest.mark.parametrize(("shape", "times"), TABLES)
def test_added_at_places(shape: tuple[int, ...], times: int) -> None:
    table, places = torch.randn(shape, dtype=torch.float64), torch.tensor([[1, -1, 0], [1, 1, -2]]).repeat(times, 1)
    for values in (torch.randn(*places.shape, *shape[1:]).double(), torch.tensor(2.5).double()):
        found = add_at_places(table, [places], values, True)
        torch.testing.assert_close(found, aten.index_put.default(table, [places], values, True))
    others: list[Any] = [places] + [None] * (len(shape) - 1)
    torch.testing.assert_close(add_at_places(table, others, values, True), table.index_put([places], values, True))


def test_what_stays_with_the_library() -> None:
    grad, places = torch.randn(4, 3), torch.randint(4, (4,))
    assert embedding_gradient(grad, places, 4, -1, True) is NotImplemented
    assert embedding_gradient(grad[:0], places[:0], 4, -1, False) is NotImplemented
    assert add_at_places(grad, [places], grad, False) is NotImplemented
    assert add_at_places(grad, [None, places[:3]], grad[:, :3], True) is NotImplemented
    assert add_at_places(grad, [places, places % 3], grad[:, 0], True) is NotImplemented
    assert add_at_places(grad, [places > 1], grad[0], True) is NotImplemented
    assert add_at_places(torch.zeros(4, dtype=torch.int64), [places], places, True) is NotImplemented
    assert embedding_gradient(grad.to("meta"), places, 4, -1, False) is NotImplemented
    torch.use_deterministic_algorithms(True)
    try:
        assert embedding_gradient(grad, places, 4, -1, False) is NotImplemented
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("number", "count", "expected"),
    [
        (4096, 32, {"aten.mm.default": 1}),
        (512, 512, {"optfuse.sum_rows.default": 1}),
        (256, 50257, {"optfuse.sum_rows.default": 1, "aten.index_put.default": 1}),
    ],
)
def test_each_size_has_its_way(number: int, count: int, expected: dict[str, int]) -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(count, 32)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.words(tokens).sin().sum()

    _, backward = capture_training(Words(), (torch.randint(count, (number,)),))
    libraries = ("aten.mm.default", "optfuse.sum_rows.default", "aten.index_put.default")
    found = targets(backward)
    assert {name: found[name] for name in libraries if name in found} == expected
    assert "aten.embedding_dense_backward.default" not in found


class Biased(nn.Module):
    """A relative bias as T5 and Swin have it, and an embedding with padding; its places are met ``times`` times."""

    def __init__(self, times: int, words: int) -> None:
        super().__init__()
        self.bias = nn.Embedding(5, 3)
        self.table = nn.Parameter(torch.randn(7, 2))
        self.words = nn.Embedding(words, 6, padding_idx=0)
        self.register_buffer("places", torch.arange(16 * times) % 7)
        self.length = 4 * min(times, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        near = (torch.arange(self.length)[:, None] - torch.arange(self.length)[None]).abs().clamp(max=4)
        bias = self.bias(near).permute(2, 0, 1).sin()
        return (self.words(tokens) ** 2).sum() + bias.sum() + (self.table[self.places].view(-1, 4, 2) ** 3).sum()


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    ("times", "words"),
    [
        pytest.param(22, 11, id="by product"),
        pytest.param(1, 11, id="in place"),
        pytest.param(1, 180_000, id="by the last"),
    ],
)
def test_emitted_programs(times: int, words: int) -> None:
    tokens = torch.tensor([[0, 3, 3, 10], [1, 0, 9, 3]]).repeat(times, 1)
    check(Biased(times, words).bfloat16(), tokens, train=True)
