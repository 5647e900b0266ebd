"""Gradients of slices: what was read, with zeros around it; and whether what is written into one has its shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from optfuse.compiler.frontend.torch_internals.torch_sizes import has_unbacked_size

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


def refuse_other_shape(read: Callable[..., Tensor], self: Tensor, src: Tensor, *place: Any) -> None:
    """Raise the error of eager execution if what is written into a window, ``read(self, *place)``, has another shape.

    Torch's own trace lets any shape pass. A shape that depends on data stays unchecked: its run is eager execution's.
    """
    if has_unbacked_size(self) or has_unbacked_size(src):
        return
    with disable_proxy_modes_tracing():
        shape = read(self, *place).shape
        differs = len(shape) != src.dim() or any(a != b for a, b in zip(shape, src.shape, strict=True))
    if differs:
        raise RuntimeError(
            "expected src to have a size equal to the slice of self. "
            f"src size = {list(src.shape)}, slice size = {list(shape)}"
        )


def slice_scatter(
    self: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """Stays as it is; a source of another shape than the slice is refused."""
    refuse_other_shape(aten.slice.Tensor, self, src, dim, start, end, step)
    return NotImplemented


def select_scatter(self: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """Stays as it is; a source of another shape than what is selected is refused."""
    refuse_other_shape(aten.select.int, self, src, dim, index)
    return NotImplemented
