"""Inference in int8: RMS norm and dynamic quantization by row before each product, 8 layers, 8,192 rows of 4096.

The products are of the quantized values, scaled back; the weights are quantized beforehand.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from optfuse.compiler.frontend.random_weights import build

DTYPE = torch.bfloat16
TRAINS = False

#: Rows, width, layers.
SHAPES = {"full": (8192, 4096, 8), "small": (7, 33, 2)}
LARGEST = 127.0


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Values of a row over its largest, in int8, and the scale of each row."""
    scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-6) / LARGEST
    return (x.float() / scale).round().clamp(-LARGEST, LARGEST).to(torch.int8), scale


class Layer(nn.Module):
    """Norm, quantize, multiply, SiLU, quantize, multiply; added to what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        for name in ("up", "down"):
            values, scale = quantize(torch.randn(width, width) * 0.02)
            self.register_buffer(name, values)
            self.register_buffer(f"{name}_scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        for name in ("up", "down"):
            values, scale = quantize(h)
            weight, other = getattr(self, name), getattr(self, f"{name}_scale")
            product = values.to(x.dtype) @ weight.to(x.dtype).T
            h = (product.float() * scale * other[:, 0]).to(x.dtype)
            h = nn.functional.silu(h) if name == "up" else h
        return x + h


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> nn.Module:
    """The model in evaluation mode."""
    _, width, depth = SHAPES[size]
    return build(lambda: nn.Sequential(*(Layer(width) for _ in range(depth))), size, dtype)


def inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Rows of features."""
    rows, width, _ = SHAPES[size]
    return (torch.randn(rows, width, generator=torch.Generator().manual_seed(1)).to(dtype),), {}
