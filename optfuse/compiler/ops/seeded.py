"""Random tensors that follow from a seed and a number, so that a backward graph may draw them again."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from optfuse.compiler.ops import philox

LARGEST_SEED = (1 << 63) - 1


def step_seed(like: torch.Tensor) -> torch.Tensor:
    """A new seed from torch's generator, on the device of ``like``."""
    return torch.randint(LARGEST_SEED, (), dtype=torch.int64, device=like.device)


def seeded_random(
    seed: torch.Tensor, draw: int, normal: bool, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """The random tensor number ``draw`` of a seed: uniform in [0, 1), or normal of mean 0 and deviation 1.

    Bit for bit what a kernel computes, by way of the host: it is for graphs that run as they were traced.
    """
    start = seed.cpu().numpy() + np.int64(draw)
    places = np.arange(math.prod(size), dtype=np.int64)
    numbers = torch.from_numpy((philox.randn if normal else philox.rand)(start, places)).reshape(list(size))
    if dtype in (torch.bfloat16, torch.float16) and not normal:  # as a GPU draws them: rounded, and 0 where that is 1
        numbers = numbers.to(dtype)
        numbers[numbers == 1] = 0
    return torch.empty_strided(list(size), list(stride), dtype=dtype, device=seed.device).copy_(numbers)


def seeded_random_fake(
    seed: torch.Tensor, draw: int, normal: bool, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """What ``seeded_random`` returns, without its numbers."""
    return torch.empty_strided(list(size), list(stride), dtype=dtype, device=seed.device)
