"""A graph convolutional network in plain torch: three layers of 256 over 100,000 nodes and 1,000,000 edges.

Messages are gathered from the source of each edge and added up at its target.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from optfuse.compiler.frontend.random_weights import build

DTYPE = torch.float32
TRAINS = True

#: Nodes, edges, features, width, classes.
SHAPES = {"full": (100_000, 1_000_000, 128, 256, 40), "small": (13, 41, 9, 16, 5)}


class Convolution(nn.Module):
    """Mean of the neighbours, weighted by both ends' degrees, through a linear layer."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.linear = nn.Linear(before, after)

    def forward(self, x: Tensor, source: Tensor, target: Tensor, scale: Tensor) -> Tensor:
        h = self.linear(x)
        messages = h.index_select(0, source) * (scale[source] * scale[target])[:, None]
        return torch.zeros_like(h).index_add(0, target, messages)


class GraphNetwork(nn.Module):
    """Convolutions with norm and ReLU between them, and the loss over all nodes if there are labels."""

    def __init__(self, features: int, width: int, classes: int) -> None:
        super().__init__()
        sizes = [features, width, width, classes]
        self.layers = nn.ModuleList(Convolution(a, b) for a, b in pairwise(sizes))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, source: Tensor, target: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        ones = torch.ones(target.shape, dtype=x.dtype, device=x.device)
        degree = torch.zeros(x.shape[:1], dtype=x.dtype, device=x.device).index_add(0, target, ones)
        scale = degree.clamp(min=1).rsqrt()
        for number, layer in enumerate(self.layers):
            x = layer(x, source, target, scale)
            if number < len(self.norms):
                x = self.dropout(F.relu(self.norms[number](x)))
        return {"logits": x} if labels is None else {"loss": F.cross_entropy(x, labels), "logits": x}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> nn.Module:
    """The model in evaluation mode."""
    return build(lambda: GraphNetwork(*SHAPES[size][2:]), size, dtype)


def inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Features of the nodes, and both ends of the edges."""
    nodes, edges, features, _, _ = SHAPES[size]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(nodes, features, generator=generator).to(dtype)
    source, target = torch.randint(0, nodes, (2, edges), generator=generator).unbind(0)
    return (x, source.clone(), target.clone()), {}


def training_inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A graph and the class of each node: the result has a loss."""
    args, _ = inputs(size, dtype)
    return args, {"labels": torch.arange(SHAPES[size][0]) % SHAPES[size][4]}
