"""Space to depth and back: blocks of 2 x 2 pixels as channels, for convolutions of stride 2 as ones of stride 1."""

from __future__ import annotations

import torch


def to_depth(x: torch.Tensor, before: list[int], blocks: list[int], channels: int) -> torch.Tensor:
    """Return (N, channels, *blocks), channels-last: channel 4c + 2i + j of block (y, x) is pixel (2y + i, 2x + j) of c.

    Pixels are counted from ``before`` rows and columns ahead of the image. What lies outside of it, and in channels
    beyond four times the image's, is 0.
    """
    n, inner, height, width = x.shape
    after = [2 * count - size - ahead for count, size, ahead in zip(blocks, (height, width), before, strict=True)]
    padded = torch.nn.functional.pad(x, (before[1], after[1], before[0], after[0]))
    split = padded.reshape(n, inner, blocks[0], 2, blocks[1], 2).permute(0, 1, 3, 5, 2, 4)
    out = torch.nn.functional.pad(split.reshape(n, 4 * inner, *blocks), (0, 0, 0, 0, 0, channels - 4 * inner))
    return out.contiguous(memory_format=torch.channels_last)


def from_depth(x: torch.Tensor, before: list[int], size: list[int]) -> torch.Tensor:
    """The tensor of ``size`` of which ``to_depth`` made ``x``; contiguous."""
    n, inner, height, width = size
    split = x[:, : 4 * inner].reshape(n, inner, 2, 2, *x.shape[2:]).permute(0, 1, 4, 2, 5, 3)
    whole = split.reshape(n, inner, 2 * x.shape[2], 2 * x.shape[3])
    return whole[:, :, before[0] : before[0] + height, before[1] : before[1] + width].contiguous()
