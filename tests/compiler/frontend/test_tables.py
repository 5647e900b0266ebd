"""Gradients of tables without a sort, against eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from optfuse.compiler.frontend import tables
from optfuse.compiler.frontend.tables import add_at_places, embedding_gradient
from optfuse.compiler.frontend.training import capture_training
from tests.compiler.frontend.running import targets
from tests.oracle.judging import check

aten = torch.ops.aten

#: What the ways demand is what the constants say: with these each way serves tables of a few rows.
WAYS = {
    "by product": {"MEETING": 0},
    "in place": {"MEETING": 1 << 20},
    "by the last": {"MEETING": 1 << 20, "SMALL_TABLE": 0},
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in WAYS[request.param].items():
        monkeypatch.setattr(tables, name, value)
    return request.param


@pytest.mark.parametrize("padding", [-1, 0, 3])
@pytest.mark.parametrize("shape", [(7,), (3, 5), (1, 1), (2, 2, 2)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.usefixtures("way")
def test_embedding_gradient(padding: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    places, grad = torch.randint(19, shape), torch.randn(*shape, 6).to(dtype)
    found = embedding_gradient(grad, places, 19, padding, False)
    expected = aten.embedding_dense_backward.default(grad.double(), places, 19, padding, False)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-12, atol=1e-3)


@pytest.mark.parametrize("shape", [(4, 3), (6,), (9, 2, 3)])
@pytest.mark.usefixtures("way")
def test_added_at_places(shape: tuple[int, ...]) -> None:
    table, places = torch.randn(shape, dtype=torch.float64), torch.tensor([[1, -1, 0], [1, 1, -2]])
    for values in (torch.randn(2, 3, *shape[1:]).double(), torch.tensor(2.5).double()):
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
    """A relative bias as T5 and Swin have it, and an embedding with padding."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Embedding(5, 3)
        self.table = nn.Parameter(torch.randn(7, 2))
        self.words = nn.Embedding(11, 6, padding_idx=0)
        self.register_buffer("places", torch.arange(16) % 7)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        near = (torch.arange(4)[:, None] - torch.arange(4)[None]).abs().clamp(max=4)
        bias = self.bias(near).permute(2, 0, 1).sin()
        return (self.words(tokens) ** 2).sum() + bias.sum() + (self.table[self.places].view(4, 4, 2) ** 3).sum()


@pytest.mark.usefixtures("way")
def test_emitted_programs() -> None:
    check(Biased().bfloat16(), torch.tensor([[0, 3, 3, 10], [1, 0, 9, 3]]), train=True)
