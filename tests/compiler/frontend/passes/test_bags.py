"""Bags of equally many rows are sums over gathered rows; other bags stay the library's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import optfuse

IDS = torch.tensor([[0, 3, 3], [16, 1, 2], [5, 5, 5], [9, 0, 16]])
WEIGHTS = torch.tensor([[0.5, 1.0, -2.0], [1.0, 0.0, 3.0], [1.0, 1.0, 1.0], [0.25, -1.0, 2.0]])


class Bags(nn.Module):
    """Bags, and what reads them."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(17, 8, **options)

    def forward(self, ids: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        return torch.cat([self.table(ids, per_sample_weights=weights), torch.ones(4, 1)], 1).sin()


CASES: dict[str, tuple[dict[str, Any], tuple[torch.Tensor, ...], bool]] = {
    "sums": ({"mode": "sum"}, (IDS,), True),
    "means": ({"mode": "mean"}, (IDS,), True),
    "weighted": ({"mode": "sum"}, (IDS, WEIGHTS), True),
    "maxima": ({"mode": "max"}, (IDS,), False),
    "padded": ({"mode": "sum", "padding_idx": 3}, (IDS,), False),
}


@pytest.mark.spread(3, 1)
@pytest.mark.parametrize("case", CASES)
def test_optimize(case: str) -> None:
    options, args, looped = CASES[case]
    model = Bags(**options).eval()
    schedule = optfuse.optimize(model, args)
    assert ("embedding_bag" in str(schedule.decisions)) != looped
    with torch.no_grad():
        torch.testing.assert_close(schedule.compile()(*args), model(*args))


@pytest.mark.spread(5, 1)
@pytest.mark.parametrize("case", CASES)
def test_a_step_of_torch_compile(case: str) -> None:
    options, args, looped = CASES[case]
    model = Bags(**options)
    model(*args).square().sum().backward()
    expected = model.table.weight.grad
    model.table.weight.grad = None
    torch._dynamo.reset()  # noqa: SLF001 - torch's name for it
    before = len(optfuse.compiled_graphs())
    torch.compile(model, backend="optfuse")(*args).square().sum().backward()
    graphs = optfuse.compiled_graphs()[before:]
    assert len(graphs) == 2
    assert any("bag" in name for graph in graphs for name in graph.library_calls) != looped
    torch.testing.assert_close(model.table.weight.grad, expected)


def test_bags_of_many_sizes_stay_the_library_s() -> None:
    class Offset(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.EmbeddingBag(17, 8, mode="sum")

        def forward(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
            return self.table(ids, offsets)

    model, args = Offset().eval(), (IDS.reshape(-1), torch.tensor([0, 2, 2, 7]))
    with torch.no_grad():
        torch.testing.assert_close(optfuse.optimize(model, args).compile()(*args), model(*args))
