"""A language model's last step: RMS norm, a head of 128,256 words, and cross-entropy, 2,048 tokens of 2048 features.

The loss has a z-term and label smoothing, as large models are trained with.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from optfuse.compiler.frontend.random_weights import build

DTYPE = torch.bfloat16
TRAINS = True

#: Tokens, features, words.
SHAPES = {"full": (2048, 2048, 128256), "small": (7, 20, 131)}


class Head(nn.Module):
    """Norm, projection to the words, and the loss over tokens whose label is not -100."""

    def __init__(self, width: int, words: int) -> None:
        super().__init__()
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.norm(x)).float()
        loss = nn.functional.cross_entropy(logits, labels, label_smoothing=0.1)
        z = torch.logsumexp(logits, -1).square()
        return {"loss": loss + 1e-4 * torch.where(labels >= 0, z, 0.0).mean()}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> nn.Module:
    """The model in evaluation mode."""
    return build(lambda: Head(*SHAPES[size][1:]), size, dtype)


def inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Features, and labels of which every fifth does not count."""
    rows, width, words = SHAPES[size]
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(1)).to(dtype)
    labels = torch.arange(rows) * 7919 % words
    return (x, labels.masked_fill(torch.arange(rows) % 5 == 4, -100)), {}
