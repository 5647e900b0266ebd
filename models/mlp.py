"""A multi-layer perceptron: four layers of 4096 with layer norm and GELU, 4096 rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from optfuse.compiler.frontend.random_weights import build

DTYPE = torch.bfloat16
TRAINS = True

#: Rows, width, number of layers, classes.
SHAPES = {"full": (4096, 4096, 4, 1000), "small": (7, 33, 2, 11), "bench": (4096, 4096, 4, 1000)}


class Perceptron(nn.Module):
    """Layers of linear, norm, GELU, dropout; then a linear head, and the loss if there are labels."""

    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        layers = (
            nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(), nn.Dropout(0.1))
            for _ in range(depth)
        )
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.head(self.body(x))
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> nn.Module:
    """The model in evaluation mode."""
    _, width, depth, classes = SHAPES[size]
    return build(lambda: Perceptron(width, depth, classes), size, dtype)


def inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Rows of features."""
    rows, width, _, _ = SHAPES[size]
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(rows, width, generator=generator).to(dtype),), {}


def training_inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Rows of features and their classes: the result has a loss."""
    rows, _, _, classes = SHAPES[size]
    return inputs(size, dtype)[0], {"labels": torch.arange(rows) % classes}
