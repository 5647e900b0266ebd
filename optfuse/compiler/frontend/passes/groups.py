"""Grouped convolutions in the widths at which a library is fast, in half precision.

cuDNN has kernels for groups of 4, 8, 16, 32, 64 and 128 channels whose images are channels-last. At other widths it is
two to five times slower. So zeros are added to each group's channels, and what the zeros make is cut off; the kernels
before and behind do so while they write and read. At 64 channels its gradient of the images is slow, and the
convolution of the result's gradient with the kernel turned around is not.

What that is worth on an H200 is in docs/lab/notebook/library_calls.md.
"""

from __future__ import annotations

from operator import getitem
from typing import Any

import torch
from torch.fx import Node

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from optfuse.compiler.frontend.convolution_forms.convolution_shapes import (
    ConvolutionShape,
    arguments_of,
    call_before,
    convolution_shape,
)
from optfuse.compiler.frontend.convolution_forms.grouped_products import mixes_groups
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.graph.rewrite import copied, swap, with_graph

aten, ours = torch.ops.aten, torch.ops.optfuse

#: Groups of so many channels are widened, at least and at most: beyond 128 the next width is 256, at which cuDNN's
#: gradient of the weights takes ten times as long.
NARROWEST, WIDEST = 3, 128
#: At this width the gradient of the images is two to seven times slower than a convolution.
SLOW_GRADIENT = 64


def widen_groups(captured: Captured) -> Captured:
    """Rewrite grouped convolutions, and their gradients, whose groups have a width that is slow."""
    graph = copied(captured.graph)
    for node in list(graph.graph.nodes):
        if mixes_groups(node):  # these become products
            continue
        if node.target is aten.convolution.default:
            _forward(node)
        elif node.target is aten.convolution_backward.default:
            _backward(node)
    return with_graph(captured, graph)


def _fast_width(shape: ConvolutionShape) -> int | None:
    """The width at which a grouped convolution is computed: a power of two; None where it is no case for this."""
    taken, made = shape.channels_by_group
    if shape.images.dim() != 4 or shape.groups == 1 or taken != made or not NARROWEST <= taken <= WIDEST:
        return None
    return 1 << (taken - 1).bit_length()


def _forward(node: Node) -> None:
    x, weight, bias, *rest = arguments_of(node)
    shape = convolution_shape(node)
    width = None if shape is None else _fast_width(shape)
    if shape is None or width is None or width == shape.channels_by_group[0]:
        return
    images, kernels = _resized(node, x, 1, shape.groups, width), _wide_weight(node, weight, shape, width)
    shift = None if bias is None else _resized(node, bias, 0, shape.groups, width)
    out = call_before(node, aten.convolution.default, images, kernels, shift, *rest)
    swap(node, _resized(node, out, 1, shape.groups, shape.channels_by_group[1]))


def _backward(node: Node) -> None:
    shape = convolution_shape(node)
    width = None if shape is None else _fast_width(shape)
    grad, x, weight, sizes, *rest, mask = arguments_of(node)
    if shape is None or width is None or mask[2]:
        return
    turned = mask[0] and width == SLOW_GRADIENT and shape.has_unit_stride and min(shape.turned_padding) >= 0
    taken, made = shape.channels_by_group
    widened = width != taken
    if not (widened or turned):
        return
    if widened:
        grad, x = (_resized(node, images, 1, shape.groups, width) for images in (grad, x))
        weight = _wide_weight(node, weight, shape, width)
    found: list[Node | None] = [None, None]
    if turned:
        found[0] = _turned_gradient(node, grad, weight, shape)
        mask = [False, mask[1], False]
    if any(mask):
        whole = call_before(node, aten.convolution_backward.default, grad, x, weight, sizes, *rest, mask)
        for k in (0, 1):
            found[k] = call_before(node, getitem, whole, k) if mask[k] else found[k]
    images, kernels = found
    if widened and images is not None:
        found[0] = _resized(node, images, 1, shape.groups, taken)
    if widened and kernels is not None:
        found[1] = _resized(node, _resized(node, kernels, 0, shape.groups, made), 1, 1, taken)
    for user in list(node.users):
        gradient = found[arguments_of(user)[1]] if user.target is getitem else None
        assert gradient is not None, "no node reads a gradient that is not computed"
        swap(user, gradient)
    node.graph.erase_node(node)


def _turned_gradient(node: Node, grad: Node, weight: Node, shape: ConvolutionShape) -> Node:
    """The gradient of the images as a convolution: each group's kernels are turned around, and its channels swapped."""
    made, taken, *window = weight.meta["val"].shape
    by_group = call_before(node, aten.view.default, weight, [shape.groups, made // shape.groups, taken, *window])
    swapped = call_before(node, aten.transpose.int, by_group, 1, 2)
    row_major = {"memory_format": torch.contiguous_format}
    kernels = call_before(node, aten.clone.default, swapped, **row_major)
    whole = call_before(node, aten.view.default, kernels, [shape.groups * taken, made // shape.groups, *window])
    turned = call_before(node, aten.flip.default, whole, [2, 3])
    args = (grad, turned, None, [1, 1], shape.turned_padding, shape.dilation, False, [0, 0], shape.groups)
    return call_before(node, aten.convolution.default, *args)


def _wide_weight(node: Node, weight: Any, shape: ConvolutionShape, width: int) -> Node:
    return _resized(node, _resized(node, weight, 0, shape.groups, width), 1, 1, width)


def _resized(node: Node, x: Any, dim: int, groups: int, width: int) -> Node:
    return call_before(node, ours.resize_groups.default, x, dim, groups, width)
