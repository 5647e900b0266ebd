"""An LSTM written out cell by cell, with layer norm on its gates: 1024 wide, 64 rows, 24 steps.

Every gate is a handful of small operations, so that launches are most of the time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from optfuse.compiler.frontend.random_weights import build

DTYPE = torch.bfloat16
TRAINS = True

#: Rows, steps, width.
SHAPES = {"full": (64, 24, 1024), "small": (3, 4, 20)}


class Cells(nn.Module):
    """One cell, applied at each step; the loss is the error against a target sequence."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.take, self.keep = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width, bias=False)
        self.norm, self.norm_cell = nn.LayerNorm(4 * width), nn.LayerNorm(width)

    def forward(self, x: Tensor, target: Tensor | None = None) -> dict[str, Tensor]:
        hidden, cell = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0])
        states = []
        for step in range(x.shape[1]):
            gates = self.norm(self.take(x[:, step]) + self.keep(hidden))
            enter, forget, value, leave = gates.chunk(4, -1)
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(value)
            hidden = torch.sigmoid(leave) * torch.tanh(self.norm_cell(cell))
            states.append(hidden)
        found = torch.stack(states, 1)
        return {"states": found} if target is None else {"loss": nn.functional.mse_loss(found, target), "states": found}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> nn.Module:
    """The model in evaluation mode."""
    return build(lambda: Cells(SHAPES[size][2]), size, dtype)


def inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A sequence of features a row."""
    return (torch.randn(SHAPES[size], generator=torch.Generator().manual_seed(1)).to(dtype),), {}


def training_inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Sequences and targets: the result has a loss."""
    args, _ = inputs(size, dtype)
    return args, {"target": args[0].flip(0).tanh()}
