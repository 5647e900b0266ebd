"""A step of AdamW over the 148 tensors of GPT-2 small: decay, moments, and the update, in place.

Gradients are bfloat16, weights and moments float32; the gradients' norm is clipped first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from optfuse.compiler.frontend.random_weights import build

DTYPE = torch.float32
TRAINS = False

#: Layers, width, words, positions.
CONFIGS = {"full": (12, 768, 50257, 1024), "small": (2, 10, 23, 7)}
RATE, DECAY, BETA1, BETA2, EPSILON, LARGEST = 3e-4, 0.1, 0.9, 0.95, 1e-8, 1.0


def shapes(size: str) -> list[tuple[int, ...]]:
    """The shapes of GPT-2's parameters."""
    depth, width, words, positions = CONFIGS[size]
    layer = [(width,), (width,), (width, 3 * width), (3 * width,), (width, width), (width,), (width,), (width,)]
    layer += [(width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    return [(words, width), (positions, width), *(layer * depth), (width,), (width,)]


class Step(nn.Module):
    """Weights and both moments as buffers, each written in place."""

    def __init__(self, sizes: list[tuple[int, ...]]) -> None:
        super().__init__()
        for number, shape in enumerate(sizes):
            self.register_buffer(f"weight{number}", torch.randn(shape) * 0.02)
            self.register_buffer(f"mean{number}", torch.randn(shape) * 1e-3)
            self.register_buffer(f"square{number}", torch.rand(shape) * 1e-6)

    def forward(self, step: Tensor, gradients: list[Tensor]) -> Tensor:
        total = torch.stack([g.float().square().sum() for g in gradients]).sum().sqrt()
        clip = (LARGEST / (total + 1e-6)).clamp(max=1.0)
        correct1, correct2 = 1 - BETA1**step, (1 - BETA2**step).sqrt()
        for number, given in enumerate(gradients):
            weight, mean, square = (getattr(self, f"{name}{number}") for name in ("weight", "mean", "square"))
            gradient = given.float() * clip
            weight.mul_(1 - RATE * DECAY)
            mean.lerp_(gradient, 1 - BETA1)
            square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
            weight.sub_(RATE * (mean / correct1) / (square.sqrt() / correct2 + EPSILON))
        return total


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> nn.Module:
    """The step, with its state."""
    return build(lambda: Step(shapes(size)), size, dtype)


def inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The number of the step, and gradients."""
    generator = torch.Generator().manual_seed(1)
    block = torch.randn(4099, generator=generator).to(torch.bfloat16)
    gradients = []
    for shape in shapes(size):
        count = torch.Size(shape).numel()
        gradients.append(block.repeat(-(-count // len(block)))[:count].reshape(shape).clone())
    return (torch.tensor(7.0), gradients), {}
