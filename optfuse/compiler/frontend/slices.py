"""Gradients of slices: what was read, with zeros around it."""

from __future__ import annotations

import torch
from torch import Tensor

aten = torch.ops.aten


def select_backward(grad_output: Tensor, input_sizes: list[int], dim: int, index: int) -> Tensor:
    """The gradient at one index along a dimension, zeros at the others."""
    rank = len(input_sizes)
    size, dim = input_sizes[dim], dim % rank
    index = index % size
    return _pad_axis(aten.unsqueeze.default(grad_output, dim), rank, dim, index, size - index - 1)


def slice_backward(grad_output: Tensor, input_sizes: list[int], dim: int, start: int, end: int, step: int) -> Tensor:
    """The gradient at the elements of a slice along a dimension, zeros at the others."""
    size, rank, count = input_sizes[dim], len(input_sizes), grad_output.shape[dim]
    if step != 1 and isinstance(size, int) and count * step == size:
        # the dimension as one of steps and one of places within a step: the gradient is at one place of each step
        dim, place = dim % rank, start % step
        steps = aten.unsqueeze.default(grad_output, dim + 1)
        return aten.reshape.default(_pad_axis(steps, rank + 1, dim + 1, place, step - 1 - place), input_sizes)
    if step != 1:
        zeros = aten.full.default(input_sizes, 0, dtype=grad_output.dtype, device=grad_output.device)
        return aten.slice_scatter.default(zeros, grad_output, dim, start, end, step)
    first = min(max(start + size if start < 0 else start, 0), size)
    return _pad_axis(grad_output, rank, dim, first, size - first - count)


def _pad_axis(grad: Tensor, rank: int, dim: int, before: int, after: int) -> Tensor:
    """``grad`` with zeros before and after it along one axis."""
    pad = [0] * (2 * (rank - dim % rank - 1)) + [before, after]
    return aten.constant_pad_nd.default(grad, pad, 0)
