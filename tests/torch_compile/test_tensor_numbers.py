"""Tensors of one number in the host's memory that stand for numbers: the graph is scheduled, at each number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import optfuse

F = torch.nn.functional

#: By name, functions of (x, n, s): six numbers, an int64 tensor, a float64 tensor.
PROGRAMS: dict[str, Callable[..., Any]] = {
    "arange": lambda x, n, s: torch.arange(n) * x.sum(),
    "zeros": lambda x, n, s: torch.zeros(2, n) + x.sum(),
    "slice": lambda x, n, s: x[:n] * 2,
    "narrow": lambda x, n, s: x.narrow(0, 1, n) * 2,
    "split": lambda x, n, s: torch.split(x, [n, 6 - n])[1] * 2,
    "roll": lambda x, n, s: x.roll(n) * 2,
    "repeat": lambda x, n, s: x.repeat(n) * 2,
    "index": lambda x, n, s: x[..., n] * 2,
    "select": lambda x, n, s: x.select(0, n) * 2,
    "alpha": lambda x, n, s: x.add(x, alpha=s),
    "full": lambda x, n, s: torch.full((3,), s) + x.sum(),
    "clamp": lambda x, n, s: x.clamp(max=s) * 2,
    "slope": lambda x, n, s: F.leaky_relu(x, s),
    "tensor": lambda x, n, s: (x * n + s, n + 1),
    "both": lambda x, n, s: x[:n] * n + s,
}


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_graph_is_scheduled_and_each_number_counts(name: str) -> None:
    torch._dynamo.reset()  # noqa: SLF001 - torch's name for it
    program = PROGRAMS[name]
    compiled = torch.compile(program, backend="optfuse")
    before = len(optfuse.compiled_graphs())
    for n, s in ((3, 0.5), (2, 0.25), (4, -0.5), (3, 0.5)):
        x = torch.randn(6)
        given = (x, torch.tensor(n), torch.tensor(s, dtype=torch.float64))
        torch.testing.assert_close(compiled(*given), program(*given))
    assert [graph.why_not for graph in optfuse.compiled_graphs()[before:] if graph.why_not] == []


def test_lists_of_numbers_of_numpy() -> None:
    """As heads of policies with several discrete actions have them."""

    class Heads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sizes = [np.int64(2), np.int64(3)]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            one, other = torch.split(x, list(self.sizes), dim=1)
            return one.softmax(-1).sum(-1) + other.exp().sum(-1)

    torch._dynamo.reset()  # noqa: SLF001 - torch's name for it
    heads, x = Heads(), torch.randn(4, 5)
    before = len(optfuse.compiled_graphs())
    torch.testing.assert_close(torch.compile(heads, backend="optfuse", fullgraph=True)(x), heads(x))
    assert all(not graph.why_not for graph in optfuse.compiled_graphs()[before:])
