"""A graph attention network in plain torch: two layers of 4 heads of 64 over 50,000 nodes and 500,000 edges.

Each node's edges share one softmax: its largest score by ``scatter_reduce``, its sums by ``scatter_add``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from optfuse.compiler.frontend.random_weights import build

DTYPE = torch.float32
TRAINS = True

#: Nodes, edges, features, heads, width of a head, classes.
SHAPES = {"full": (50_000, 500_000, 128, 4, 64, 40), "small": (13, 41, 9, 2, 6, 5)}


class GraphAttention(nn.Module):
    """Neighbours weighted by a softmax over the edges of their target."""

    def __init__(self, before: int, heads: int, width: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.linear = nn.Linear(before, heads * width, bias=False)
        self.left, self.right = nn.Linear(heads * width, heads), nn.Linear(heads * width, heads)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        h = self.linear(x)
        scores = F.leaky_relu(self.left(h)[source] + self.right(h)[target], 0.2)
        to = target[:, None].expand_as(scores)
        empty = torch.zeros(x.shape[0], self.heads, dtype=x.dtype, device=x.device)
        highest = empty.scatter_reduce(0, to, scores.detach(), "amax", include_self=False)
        weights = torch.exp(scores - highest[target])
        weights = weights / empty.scatter_add(0, to, weights)[target]
        messages = h.view(-1, self.heads, self.width)[source] * weights[:, :, None]
        return torch.zeros_like(h).index_add(0, target, messages.flatten(1))


class GraphNetwork(nn.Module):
    """Two layers of attention, a linear head, and the loss over all nodes if there are labels."""

    def __init__(self, features: int, heads: int, width: int, classes: int) -> None:
        super().__init__()
        self.first = GraphAttention(features, heads, width)
        self.second = GraphAttention(heads * width, heads, width)
        self.head = nn.Linear(heads * width, classes)

    def forward(self, x: Tensor, source: Tensor, target: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        x = F.elu(self.first(x, source, target))
        logits = self.head(F.elu(self.second(x, source, target)))
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> nn.Module:
    """The model in evaluation mode."""
    return build(lambda: GraphNetwork(*SHAPES[size][2:]), size, dtype)


def inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Features of the nodes, and both ends of the edges."""
    nodes, edges, features = SHAPES[size][:3]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(nodes, features, generator=generator).to(dtype)
    source, target = torch.randint(0, nodes, (2, edges), generator=generator).unbind(0)
    return (x, source.clone(), target.clone()), {}


def training_inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A graph and the class of each node: the result has a loss."""
    args, _ = inputs(size, dtype)
    return args, {"labels": torch.arange(SHAPES[size][0]) % SHAPES[size][5]}
