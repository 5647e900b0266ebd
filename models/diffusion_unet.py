"""A diffusion U-Net in plain torch: residual blocks with group norm and time, attention below, 8 latents of 64 x 64."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from optfuse.compiler.frontend.random_weights import build

DTYPE = torch.bfloat16
TRAINS = True

#: Channels of each level, heads of attention, groups of the norms.
CONFIGS = {"full": ((320, 640, 1280), 8, 32), "small": ((8, 16), 2, 4)}

#: Number of latents, their channels and their side.
SHAPES = {"full": (8, 4, 64), "small": (2, 3, 12)}


def time_embedding(times: Tensor, width: int) -> Tensor:
    """Sines and cosines of the time at ``width`` / 2 frequencies."""
    steps = torch.arange(width // 2, dtype=torch.float32, device=times.device)
    angles = times[:, None].float() * torch.exp(-math.log(10000.0) * steps / (width // 2))
    return torch.cat([angles.cos(), angles.sin()], 1)


class Residual(nn.Module):
    """Norm, SiLU and convolution, twice; the time is added in between."""

    def __init__(self, before: int, after: int, width: int, groups: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(groups, before), nn.Conv2d(before, after, 3, padding=1)
        self.time = nn.Linear(width, after)
        self.norm2, self.conv2 = nn.GroupNorm(groups, after), nn.Conv2d(after, after, 3, padding=1)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class Attention(nn.Module):
    """Attention of every pixel to every other."""

    def __init__(self, channels: int, heads: int, groups: int) -> None:
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(groups, channels), heads
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        rows = self.qkv(self.norm(x).flatten(2).transpose(1, 2)).view(n, h * w, 3, self.heads, c // self.heads)
        q, k, v = rows.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, h * w, c)
        return x + self.out(mixed).transpose(1, 2).view(n, c, h, w)


class DiffusionUNet(nn.Module):
    """Two residual blocks a level down, three up, attention at the lower levels; the loss is that of the noise."""

    def __init__(self, latent: int, channels: tuple[int, ...], heads: int, groups: int) -> None:
        super().__init__()

        def attention(level: int, width: int) -> nn.Module:
            return Attention(width, heads, groups) if level else nn.Identity()

        self.width = channels[0]
        time = 4 * self.width
        self.time = nn.Sequential(nn.Linear(self.width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(latent, channels[0], 3, padding=1)
        self.down, self.shrink, self.up = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        kept, now = [channels[0]], channels[0]
        for number, wide in enumerate(channels):
            for _ in range(2):
                self.down.append(nn.ModuleList([Residual(now, wide, time, groups), attention(number, wide)]))
                now = wide
                kept.append(now)
            if number + 1 < len(channels):
                self.shrink.append(nn.Conv2d(now, now, 3, 2, 1))
                kept.append(now)
        self.middle = nn.ModuleList(
            [Residual(now, now, time, groups), Attention(now, heads, groups), Residual(now, now, time, groups)]
        )
        for number, wide in reversed(list(enumerate(channels))):
            for _ in range(3):
                block = Residual(now + kept.pop(), wide, time, groups)
                self.up.append(nn.ModuleList([block, attention(number, wide)]))
                now = wide
        self.grow = nn.ModuleList(nn.Conv2d(wide, wide, 3, padding=1) for wide in channels[:0:-1])
        self.norm, self.last = nn.GroupNorm(groups, now), nn.Conv2d(now, latent, 3, padding=1)

    def forward(self, latents: Tensor, times: Tensor, noise: Tensor | None = None) -> dict[str, Tensor]:
        time = self.time(time_embedding(times, self.width).to(latents.dtype))
        x = self.first(latents)
        kept = [x]
        for number, (residual, attention) in enumerate(self.down):
            x = attention(residual(x, time))
            kept.append(x)
            if number % 2 and number // 2 < len(self.shrink):
                x = self.shrink[number // 2](x)
                kept.append(x)
        x = self.middle[2](self.middle[1](self.middle[0](x, time)), time)
        for number, (residual, attention) in enumerate(self.up):
            x = attention(residual(torch.cat([x, kept.pop()], 1), time))
            if number % 3 == 2 and number // 3 < len(self.grow):
                x = self.grow[number // 3](F.interpolate(x, scale_factor=2.0))
        found = self.last(F.silu(self.norm(x)))
        return {"sample": found} if noise is None else {"loss": F.mse_loss(found, noise), "sample": found}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> nn.Module:
    """The model in evaluation mode."""
    return build(lambda: DiffusionUNet(SHAPES[size][1], *CONFIGS[size]), size, dtype)


def inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Noisy latents and their times."""
    count, channels, side = SHAPES[size]
    latents = torch.randn(count, channels, side, side, generator=torch.Generator().manual_seed(1)).to(dtype)
    return (latents, torch.arange(count) * 37 % 1000), {}


def training_inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Noisy latents, times and the noise: the result has a loss."""
    args, _ = inputs(size, dtype)
    return args, {"noise": args[0].flip(0)}
