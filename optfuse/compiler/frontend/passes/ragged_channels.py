"""Convolutions of channels that are no whole vectors, with zeros behind the channels, in half precision.

cuDNN has its fast kernels where a pixel's channels are whole vectors of 16 bytes: the 18 and 36 channels of HRNet, the
38 and 61 of RexNet and MixNet's parts take twice as long as 24, 40 and 64. The kernels before and behind write the
zeros and leave them out. What that is worth is in docs/lab/notebook/library_calls.md.
"""

from __future__ import annotations

from operator import getitem
from typing import Any

import torch
from torch.fx import Node

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from optfuse.compiler.frontend.convolution_forms.convolution_shapes import (
    FEW_CHANNELS,
    ConvolutionShape,
    arguments_of,
    call_before,
    convolution_shape,
)
from optfuse.compiler.frontend.convolution_forms.patches import lie_side_by_side
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.graph.rewrite import copied, fake, swap, with_graph
from optfuse.compiler.frontend.torch_internals.torch_sizes import hint_of

aten, ours = torch.ops.aten, torch.ops.optfuse

#: Channels of a vector.
VECTOR_CHANNELS = 8
#: Weights of more elements, and of more than the images have, take longer to copy than the calls gain.
MOST_WEIGHTS = 1 << 21


def pad_channels(captured: Captured) -> Captured:
    """Rewrite convolutions, and their gradients, that take or make a number of channels that is no whole vector.

    Before: ``y = convolution(x, w, ..)``, x of (N, 18, H, W) and w of (36, 18, 3, 3). After: ``y`` is the first 36
    channels of ``convolution(x2, w2, ..)``, x2 of (N, 24, H, W) and w2 of (40, 24, 3, 3), zeros behind.
    """
    graph = copied(captured.graph)
    for node in list(graph.graph.nodes):
        if node.target in _REWRITES:
            shape = convolution_shape(node)
            if shape is not None and _is_slow(shape):
                _REWRITES[node.target](node, shape)
    return with_graph(captured, graph)


def _is_slow(shape: ConvolutionShape) -> bool:
    taken, made = shape.channels_by_group
    if shape.groups != 1 or shape.images.dim() != 4 or min(taken, made) <= FEW_CHANNELS:
        return False
    if not (taken % VECTOR_CHANNELS or made % VECTOR_CHANNELS) or _is_product(shape):
        return False
    return shape.weight.numel() <= max(MOST_WEIGHTS, hint_of(shape.images.numel() + shape.out.numel()))


def _is_product(shape: ConvolutionShape) -> bool:
    """Whether windows lie side by side, so that the convolution becomes a matrix product."""
    return max(shape.kernel) > 1 and lie_side_by_side(shape.images.shape[2:], shape.kernel, shape.stride, shape.padding)


def _forward(node: Node, shape: ConvolutionShape) -> None:
    x, weight, bias, *rest = arguments_of(node)
    shift = None if bias is None else _with_zeros(node, bias)
    given = (_images(node, x), _with_zeros(node, weight), shift)
    swap(node, _cut(node, call_before(node, node.target, *given, *rest), 1, shape.channels_by_group[1]))


def _with_relu(node: Node, shape: ConvolutionShape) -> None:
    x, weight, bias, residual, *rest = arguments_of(node)
    added = (None if bias is None else _with_zeros(node, bias), None if residual is None else _images(node, residual))
    given = (_images(node, x), _with_zeros(node, weight), *added)
    swap(node, _cut(node, call_before(node, node.target, *given, *rest), 1, shape.channels_by_group[1]))


def _backward(node: Node, shape: ConvolutionShape) -> None:
    grad, x, weight, _, *rest, mask = arguments_of(node)
    if mask[2]:  # sums of the gradient are no part of it, unless torch has made it so
        return
    given = (_images(node, grad), _images(node, x), _with_zeros(node, weight))
    whole = call_before(node, aten.convolution_backward.default, *given, None, *rest, mask)
    taken, made = shape.channels_by_group
    for user in list(node.users):
        place = arguments_of(user)[1]
        gradient = call_before(node, getitem, whole, place)
        swap(user, _cut(node, gradient if place == 0 else _cut(node, gradient, 0, made), 1, taken))
    node.graph.erase_node(node)


_REWRITES: dict[Any, Any] = {
    aten.convolution.default: _forward,
    ours.convolution_relu.default: _with_relu,
    aten.convolution_backward.default: _backward,
}


def _images(node: Node, x: Any) -> Node:
    """Images with zeros behind their channels; what they were cut from, if that is it."""
    width = _size(x, 1) + -_size(x, 1) % VECTOR_CHANNELS
    return x.args[0] if _is_cut(x, width) else _with_zeros(node, x, first=1, count=1)


def _is_cut(x: Node, width: int) -> bool:
    """Whether images are what one of these convolutions has made, without the zeros that it made of zeros."""
    if x.target is not aten.slice.Tensor or arguments_of(x)[1:3] != [1, 0]:
        return False
    whole = arguments_of(x)[0]
    return whole.target in (aten.convolution.default, ours.convolution_relu.default) and _size(whole, 1) == width


def _with_zeros(node: Node, x: Any, first: int = 0, count: int = 2) -> Node:
    """Zeros behind ``count`` dimensions from the ``first`` on, up to whole vectors."""
    rank = _value(x).dim()
    behind = [-_size(x, d) % VECTOR_CHANNELS if first <= d < first + count else 0 for d in range(rank)]
    if not any(behind):
        return x
    pads = [n for d in reversed(range(first, rank)) for n in (0, behind[d])]
    return call_before(node, aten.constant_pad_nd.default, x, pads, 0.0)


def _cut(node: Node, x: Node, dim: int, size: int) -> Node:
    """The first elements along a dimension."""
    return x if _size(x, dim) == size else call_before(node, aten.slice.Tensor, x, dim, 0, size)


def _size(x: Any, dim: int) -> int:
    return int(_value(x).shape[dim])


def _value(x: Any) -> torch.Tensor:
    """The fake value of an operand, which is a tensor."""
    value = fake(x)
    assert value is not None, "operands of a convolution are tensors"
    return value
