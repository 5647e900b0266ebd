"""A recommender in the manner of DLRM: 26 embedding bags of 100,000 rows, products of all pairs, 8,192 samples.

The bags are sums of 4 rows each, by ``nn.EmbeddingBag``.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from optfuse.compiler.frontend.random_weights import build

DTYPE = torch.float32
TRAINS = True

#: Samples, numeric features, tables, rows of a table, ids of a bag, width.
SHAPES = {"full": (8192, 13, 26, 100_000, 4, 64), "small": (5, 3, 4, 17, 2, 8)}


def perceptron(*sizes: int) -> nn.Sequential:
    """Linear layers, a ReLU after each."""
    return nn.Sequential(*(part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())))


class Recommender(nn.Module):
    """Numbers and bags, their products in pairs, and the chance of a click."""

    def __init__(self, numbers: int, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.bottom = perceptron(numbers, 4 * width, 2 * width, width)
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(perceptron(width + pairs, 8 * width, 4 * width), nn.Linear(4 * width, 1))
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1), persistent=False)

    def forward(self, numbers: Tensor, ids: Tensor, clicks: Tensor | None = None) -> dict[str, Tensor]:
        dense = self.bottom(numbers)
        bags = [table(column) for table, column in zip(self.tables, ids.unbind(0), strict=True)]
        features = torch.stack([dense, *bags], 1)
        products = features @ features.transpose(1, 2)
        logits = self.top(torch.cat([dense, products[:, self.pairs[0], self.pairs[1]]], 1))[:, 0]
        if clicks is None:
            return {"logits": logits}
        return {"loss": nn.functional.binary_cross_entropy_with_logits(logits, clicks), "logits": logits}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> nn.Module:
    """The model in evaluation mode."""
    _, numbers, tables, rows, _, width = SHAPES[size]
    return build(lambda: Recommender(numbers, tables, rows, width), size, dtype)


def inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Numeric features, and ids by table, sample and place."""
    samples, numbers, tables, rows, bag, _ = SHAPES[size]
    generator = torch.Generator().manual_seed(1)
    dense = torch.randn(samples, numbers, generator=generator).to(dtype)
    return (dense, torch.randint(0, rows, (tables, samples, bag), generator=generator)), {}


def training_inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Features, ids, and what was clicked: the result has a loss."""
    args, _ = inputs(size, dtype)
    return args, {"clicks": (torch.arange(SHAPES[size][0]) % 2).to(dtype)}
