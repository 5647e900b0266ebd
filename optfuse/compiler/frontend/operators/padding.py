"""Gradients of padding in the form that loops take: windows of the gradient, added."""

from __future__ import annotations

import torch
from torch import Tensor

from optfuse.compiler.frontend.torch_internals.torch_bridge import TO_COPY

aten = torch.ops.aten


def replication_pad_backward(grad_output: Tensor, self: Tensor, padding: list[int]) -> Tensor:
    """``replication_pad{1,2,3}d_backward``: what stands for an end is added to it, one dimension after another.

    ``padding``: before and after the last dimension, then before and after the one in front of it.
    """
    if any(type(n) is not int or n < 0 for n in padding) or 0 in self.shape:
        return NotImplemented
    dtype = grad_output.dtype
    grad = TO_COPY(grad_output, dtype=torch.promote_types(dtype, torch.float32))
    for k in range(len(padding) // 2):
        dim, (before, after) = self.dim() - 1 - k, padding[2 * k : 2 * k + 2]
        size = self.shape[dim]
        ends = ((0, before, [0, size - 1]), (before + size, after, [size - 1, 0]))
        total = aten.slice.Tensor(grad, dim, before, before + size)
        for start, count, place in ends:
            if count:
                end = aten.slice.Tensor(grad, dim, start, start + count)
                end = end if count == 1 else aten.sum.dim_IntList(end, [dim], True)
                total = total + aten.constant_pad_nd.default(end, [0, 0] * k + place, 0)
        grad = total
    return TO_COPY(grad, dtype=dtype)
