"""A diffusion transformer in plain torch: DiT L/2, 12 of its 24 layers, 16 latents of 32 x 32.

Every layer is scaled, shifted and gated by what the time gives.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from optfuse.compiler.frontend.random_weights import build

DTYPE = torch.bfloat16
TRAINS = True

#: Width, heads, layers.
CONFIGS = {"full": (1024, 16, 12), "small": (48, 3, 2)}

#: Number of latents, their channels and their side; patches are 2 x 2.
SHAPES = {"full": (16, 4, 32), "small": (2, 3, 10)}
PATCH = 2


class Layer(nn.Module):
    """Attention and a perceptron, each between a modulated norm and a gate."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.modulate = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulate(F.silu(time))[:, None].chunk(6, -1)
        x = x + gate1 * self._attend(self.norm1(x) * (1 + scale1) + shift1)
        h = self.norm2(x) * (1 + scale2) + shift2
        return x + gate2 * self.narrow(F.gelu(self.wide(h), approximate="tanh"))

    def _attend(self, x: Tensor) -> Tensor:
        n, rows, width = x.shape
        q, k, v = self.qkv(x).view(n, rows, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, rows, width))


class DiffusionTransformer(nn.Module):
    """Patches, layers, patches; the loss is that of the noise."""

    def __init__(self, latent: int, side: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.width = width
        self.patch = nn.Conv2d(latent, width, PATCH, PATCH)
        self.position = nn.Parameter(torch.randn(1, (side // PATCH) ** 2, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.norm, self.modulate = nn.LayerNorm(width, elementwise_affine=False), nn.Linear(width, 2 * width)
        self.last = nn.Linear(width, PATCH * PATCH * latent)

    def forward(self, latents: Tensor, times: Tensor, noise: Tensor | None = None) -> dict[str, Tensor]:
        steps = torch.arange(128, dtype=torch.float32, device=latents.device)
        angles = times[:, None].float() * torch.exp(-math.log(10000.0) * steps / 128)
        time = self.time(torch.cat([angles.cos(), angles.sin()], 1).to(latents.dtype))
        x = self.patch(latents).flatten(2).transpose(1, 2) + self.position
        for layer in self.layers:
            x = layer(x, time)
        shift, scale = self.modulate(F.silu(time))[:, None].chunk(2, -1)
        x = self.last(self.norm(x) * (1 + scale) + shift)
        n, c, side, _ = latents.shape
        grid = x.view(n, side // PATCH, side // PATCH, PATCH, PATCH, c)
        found = grid.permute(0, 5, 1, 3, 2, 4).reshape(n, c, side, side)
        return {"sample": found} if noise is None else {"loss": F.mse_loss(found, noise), "sample": found}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> nn.Module:
    """The model in evaluation mode."""
    _, channels, side = SHAPES[size]
    return build(lambda: DiffusionTransformer(channels, side, *CONFIGS[size]), size, dtype)


def inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Noisy latents and their times."""
    count, channels, side = SHAPES[size]
    latents = torch.randn(count, channels, side, side, generator=torch.Generator().manual_seed(1)).to(dtype)
    return (latents, torch.arange(count) * 37 % 1000), {}


def training_inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Noisy latents, times and the noise: the result has a loss."""
    args, _ = inputs(size, dtype)
    return args, {"noise": args[0].flip(0)}
