"""DenseNet-121 in plain torch: every layer of a block reads all before it, 64 images of 224 x 224."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from optfuse.compiler.frontend.random_weights import build, images

DTYPE = torch.bfloat16
TRAINS = True

#: Layers of each block, channels a layer adds, channels of the stem, classes.
CONFIGS = {"full": ((6, 12, 24, 16), 32, 64, 1000), "small": ((2, 3), 8, 16, 11)}

#: Number of images, and their side.
SHAPES = {"full": (64, 224), "small": (2, 37)}


class Layer(nn.Module):
    """Norm, ReLU and a convolution of 1 x 1, then of 3 x 3, of all that came before."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels)
        self.reduce = nn.Conv2d(channels, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.grow = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.grow(F.relu(self.norm2(self.reduce(F.relu(self.norm1(x))))))], 1)


class DenseNet(nn.Module):
    """Stem, blocks with a transition between two of them, and a linear head."""

    def __init__(self, blocks: tuple[int, ...], growth: int, channels: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, 7, 2, 3, bias=False), nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        parts: list[nn.Module] = []
        for number, depth in enumerate(blocks):
            for _ in range(depth):
                parts.append(Layer(channels, growth))
                channels += growth
            parts += [nn.BatchNorm2d(channels), nn.ReLU()]
            if number + 1 < len(blocks):
                parts += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
                channels //= 2
        self.body = nn.Sequential(*parts)
        self.head = nn.Linear(channels, classes)

    def forward(self, pixels: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.head(self.body(self.stem(pixels)).mean((2, 3)))
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> nn.Module:
    """The model in evaluation mode."""
    return build(lambda: DenseNet(*CONFIGS[size]), size, dtype)


def inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Images."""
    count, side = SHAPES[size]
    return (images(count, side, dtype),), {}


def training_inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Images and their classes: the result has a loss."""
    args, _ = inputs(size, dtype)
    return args, {"labels": torch.arange(SHAPES[size][0]) % CONFIGS[size][3]}
