"""Groups of channels in another width, or one after another: for grouped convolutions that libraries are fast at."""

from __future__ import annotations

import torch


def resize_groups(x: torch.Tensor, dim: int, groups: int, width: int) -> torch.Tensor:
    """``x`` with each of the ``groups`` equal parts of dimension ``dim`` cut, or filled up with zeros, to ``width``.

    (N, groups * old, ...) becomes (N, groups * width, ...) for ``dim`` 1; channels-last where ``x`` is.
    """
    parts = x.unflatten(dim, (groups, x.shape[dim] // groups)).transpose(dim + 1, -1)
    resized = torch.nn.functional.pad(parts, (0, width - parts.shape[-1])).transpose(dim + 1, -1)
    return resized.flatten(dim, dim + 1).contiguous(memory_format=groups_format(x))


def stack_groups(x: torch.Tensor, groups: int) -> torch.Tensor:
    """The ``groups`` equal parts of the channels one after another, each of them channels-last.

    (N, groups * width, H, W) becomes (groups, N, width, H, W).
    """
    parts = x.unflatten(1, (groups, x.shape[1] // groups)).permute(1, 0, 3, 4, 2)
    return parts.contiguous().permute(0, 1, 4, 2, 3)


def groups_format(x: torch.Tensor) -> torch.memory_format:
    """The memory format in which ``resize_groups`` returns what it makes of ``x``."""
    last = x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format
