"""Convolutions and their gradients apart: sums of biases, and convolutions that only scale channels, are for loops.

A depthwise convolution of single pixels multiplies each channel by a number. MobileOne, RepViT and FastViT have one in
each block. A library reads and writes the images for it; loops multiply where the images are read anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from optfuse.compiler.frontend.torch_internals.torch_bridge import TO_COPY
from optfuse.compiler.frontend.torch_internals.torch_sizes import is_symbolic, known_equal

aten = torch.ops.aten

_HALF = frozenset({torch.float16, torch.bfloat16})


def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Tensor:
    """The bias is a sum of its own: GPU libraries add it in another pass over the result, a fused kernel in none.

    Not where windows lie side by side: that convolution will be a matmul, which has a bias. A convolution that scales
    channels is a product.
    """
    kernel = list(weight.shape[2:])
    scales = _scales_channels(input, weight, stride, padding, transposed, groups)
    side_by_side = list(stride) == kernel and max(kernel) > 1 and not any(padding) and not transposed and groups == 1
    if not scales and (bias is None or side_by_side):
        return NotImplemented
    if scales:
        result = aten.mul.Tensor(_picked(input, stride), _along_channels(weight, input.dim()))
    else:
        rest = (stride, padding, dilation, transposed, output_padding, groups)
        result = aten.convolution.default(input, weight, None, *rest)
    return result if bias is None else aten.add.Tensor(result, _along_channels(bias, result.dim()))


def convolution_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: list[int] | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradient of the bias is a sum of its own, as it is for GPU libraries: others may read its operand with it.

    So are the gradients of a convolution that scales channels.
    """
    scales = _scales_channels(input, weight, stride, padding, transposed, groups)
    if not scales and not output_mask[2]:
        return NotImplemented
    bias = _sum_of_channels(grad_output) if output_mask[2] else None
    if not (output_mask[0] or output_mask[1]):
        return None, None, bias
    if scales:
        images = _images_gradient(grad_output, input, weight, stride) if output_mask[0] else None
        return images, _weights_gradient(grad_output, input, weight, stride) if output_mask[1] else None, bias
    rest = (stride, padding, dilation, transposed, output_padding, groups, [*output_mask[:2], False])
    found, weights, _ = aten.convolution_backward.default(grad_output, input, weight, None, *rest)
    return found, weights, bias


def _scales_channels(
    input: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], transposed: bool, groups: int
) -> bool:
    """Whether each channel of the result is a channel of the input times a number.

    Not with a stride in a range of sizes: where a size is no multiple of it, that would be another graph.
    """
    if max(stride) > 1 and any(is_symbolic(size) for size in input.shape[2:]):
        return False
    single = prod(weight.shape[2:]) == 1 and not any(padding) and not transposed
    alone = known_equal(weight.shape[0], groups) and known_equal(input.shape[1], groups)
    return single and alone and weight.dtype == input.dtype and input.is_floating_point()


def _images_gradient(grad: Tensor, input: Tensor, weight: Tensor, stride: Sequence[int]) -> Tensor:
    """The gradient times the numbers, with zeros at pixels that were passed over."""
    images = aten.mul.Tensor(grad, _along_channels(weight, grad.dim()))
    steps = [(dim, step) for dim, step in enumerate(_each(stride, grad.dim() - 2), 2) if step != 1]
    for dim, step in steps:
        images = _spread(images, dim, step)
    for dim, _ in steps:
        images = aten.slice.Tensor(images, dim, 0, input.shape[dim])
    return images


def _spread(images: Tensor, dim: int, step: int) -> Tensor:
    """Pixels ``step`` apart along a dimension, with zeros behind each."""
    before, size, after = images.shape[:dim], images.shape[dim], images.shape[dim + 1 :]
    zeros = [0] * (2 * len(after)) + [0, step - 1]
    # a view, so that in memory the new dimension lies beside the old one, not beside channels that come last
    apart = aten.constant_pad_nd.default(aten.reshape.default(images, [*before, size, 1, *after]), zeros, 0)
    return aten.reshape.default(apart, [*before, size * step, *after])


def _weights_gradient(grad: Tensor, input: Tensor, weight: Tensor, stride: Sequence[int]) -> Tensor:
    """Sums of the gradient times the images, in float32 for half types."""
    factors = [grad, _picked(input, stride)]
    if grad.dtype in _HALF:
        factors = [TO_COPY(x, dtype=torch.float32) for x in factors]
    sums = _sum_of_channels(aten.mul.Tensor(*factors))
    return aten.view.default(TO_COPY(sums, dtype=weight.dtype), list(weight.shape))


def _picked(images: Tensor, stride: Sequence[int]) -> Tensor:
    """The pixels that a window of one pixel stands at."""
    for dim, step in enumerate(_each(stride, images.dim() - 2), 2):
        if step != 1:
            images = aten.slice.Tensor(images, dim, 0, images.shape[dim], step)
    return images


def _each(numbers: Sequence[int], count: int) -> list[int]:
    """A number for each dimension, where one may stand for all."""
    return list(numbers) if len(numbers) == count else [numbers[0]] * count


def _along_channels(numbers: Tensor, rank: int) -> Tensor:
    """A number for each channel of images of so many dimensions."""
    return aten.reshape.default(numbers, [numbers.shape[0], *[1] * (rank - 2)])


def _sum_of_channels(images: Tensor) -> Tensor:
    return aten.sum.dim_IntList(images, [0, *range(2, images.dim())])
