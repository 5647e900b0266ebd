"""A language model of two LSTM layers of 1024 by ``nn.LSTM``, 32 x 64 tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from optfuse.compiler.frontend.random_weights import build, tokens

DTYPE = torch.bfloat16
TRAINS = True

#: Words, width, layers.
CONFIGS = {"full": (10000, 1024, 2), "small": (131, 24, 2)}

#: Rows and columns of token ids.
SHAPES = {"full": (32, 64), "small": (3, 7)}


class Recurrent(nn.Module):
    """Embedding, LSTM, linear head; and the loss of the next word if there are labels."""

    def __init__(self, words: int, width: int, depth: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, depth, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.head(self.lstm(self.embedding(ids))[0])
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> nn.Module:
    """The model in evaluation mode."""
    return build(lambda: Recurrent(*CONFIGS[size]), size, dtype)


def inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids."""
    return (tokens(*SHAPES[size], CONFIGS[size][0]),), {}


def training_inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids, and the next ones: the result has a loss."""
    args, _ = inputs(size)
    return args, {"labels": args[0].roll(-1, 1)}
