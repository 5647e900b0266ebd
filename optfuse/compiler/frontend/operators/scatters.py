"""Reductions of elements that go to the same place, in the form that loops take."""

from __future__ import annotations

import torch
from torch import Tensor

aten = torch.ops.aten


def scatter_reduce(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """``scatter_reduce`` as additions at places for sums and means; other reductions stay."""
    if self.dim() == 0 or not (reduce == "sum" or (reduce == "mean" and self.dtype.is_floating_point)):
        return NotImplemented

    def start(x: Tensor) -> Tensor:
        return x if include_self else aten.scatter.value(x, dim, index, 0)

    sums = aten.scatter_add.default(start(self), dim, index, src)
    if reduce == "sum":
        return sums
    counts = aten.scatter_add.default(start(torch.ones_like(self)), dim, index, torch.ones_like(src))
    return sums / counts.clamp(min=1)
