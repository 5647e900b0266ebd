"""A U-Net for segmentation in plain torch: four levels of 64 to 1024 channels, 4 images of 256 x 256."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from optfuse.compiler.frontend.random_weights import build, images

DTYPE = torch.bfloat16
TRAINS = True

#: Channels of each level, classes.
CONFIGS = {"full": ((64, 128, 256, 512, 1024), 21), "small": ((8, 12, 20), 5)}

#: Number of images, and their side.
SHAPES = {"full": (4, 256), "small": (2, 20)}


def twice(before: int, after: int) -> nn.Sequential:
    """Two convolutions, each with a norm and a ReLU."""
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(),
        nn.Conv2d(after, after, 3, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """Down by pooling, up by transposed convolutions, each level joined with its own on the way down."""

    def __init__(self, channels: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(twice(a, b) for a, b in zip((3, *channels), channels, strict=False))
        pairs = list(zip(channels[:0:-1], channels[-2::-1], strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.join = nn.ModuleList(twice(2 * b, b) for _, b in pairs)
        self.head = nn.Conv2d(channels[0], classes, 1)

    def forward(self, pixels: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        x, kept = pixels, []
        for level in self.down:
            x = level(F.max_pool2d(x, 2) if kept else x)
            kept.append(x)
        for up, join, beside in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(torch.cat([beside, up(x)], 1))
        logits = self.head(x)
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> nn.Module:
    """The model in evaluation mode."""
    return build(lambda: UNet(*CONFIGS[size]), size, dtype)


def inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Images."""
    count, side = SHAPES[size]
    return (images(count, side, dtype),), {}


def training_inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Images and the class of each pixel: the result has a loss."""
    args, _ = inputs(size, dtype)
    count, side = SHAPES[size]
    return args, {"labels": (torch.arange(count * side * side) % CONFIGS[size][1]).view(count, side, side)}
