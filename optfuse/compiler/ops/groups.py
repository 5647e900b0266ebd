"""Groups of channels made wider or narrower, for grouped convolutions in a width that libraries are fast at."""

from __future__ import annotations

import torch


def resize_groups(x: torch.Tensor, dim: int, groups: int, width: int) -> torch.Tensor:
    """``x`` with each of the ``groups`` equal parts of dimension ``dim`` cut, or filled up with zeros, to ``width``.

    (N, groups * old, ...) becomes (N, groups * width, ...) for ``dim`` 1; channels-last where ``x`` is.
    """
    parts = x.unflatten(dim, (groups, x.shape[dim] // groups)).transpose(dim + 1, -1)
    resized = torch.nn.functional.pad(parts, (0, width - parts.shape[-1])).transpose(dim + 1, -1)
    return resized.flatten(dim, dim + 1).contiguous(memory_format=groups_format(x))


def groups_format(x: torch.Tensor) -> torch.memory_format:
    """The memory format in which ``resize_groups`` returns what it makes of ``x``."""
    last = x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format
