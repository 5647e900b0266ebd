"""Convolutions in the form in which a library is fast at them, in half precision.

- Few channels and a stride of two (the first layer of most nets): two by two pixels become channels, without stride.
- Few channels otherwise, of videos too: zeros are added to them, up to a vector.
- The gradient of a depthwise convolution's input, with a stride of one: a convolution with the kernel turned around.

What that is worth on an H200 is in docs/lab/notebook/library_calls.md.
"""

from __future__ import annotations

from operator import getitem

import torch
from torch.fx import Node

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from optfuse.compiler.frontend.convolution_forms.convolution_shapes import (
    TENSOR_CORE_CHANNELS,
    ConvolutionShape,
    arguments_of,
    call_before,
    convolution_shape,
)
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.graph.rewrite import copied, fake, swap, with_graph

aten, ours = torch.ops.aten, torch.ops.optfuse

#: Where pixels stay what they are, channels are added up to so many: a vector.
VECTOR_CHANNELS = 8


def ease_convolutions(captured: Captured) -> Captured:
    """Rewrite the convolutions, and the gradients of convolutions, that have a faster form."""
    graph = copied(captured.graph)
    for node in list(graph.graph.nodes):
        if node.target is aten.convolution.default:
            _forward(node)
        elif node.target is ours.convolution_relu.default:
            _with_relu(node)
        elif node.target is aten.convolution_backward.default:
            _backward(node)
    return with_graph(captured, graph)


def _forward(node: Node) -> None:
    x, weight, bias = arguments_of(node)[:3]
    shape = convolution_shape(node)
    if shape is None or bias is not None:
        return
    if shape.is_first_layer:
        images, kernel = _as_depth(node, x, weight, shape)
        args = (images, kernel, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        swap(node, call_before(node, aten.convolution.default, *args))
    elif shape.lacks_channels:
        given = _with_channels(node, x), _with_channels(node, weight)
        swap(node, call_before(node, aten.convolution.default, *given, *node.args[2:]))


def _with_relu(node: Node) -> None:
    x, weight, bias, residual = arguments_of(node)[:4]
    shape = convolution_shape(node)
    if shape is not None and shape.is_first_layer:
        images, kernel = _as_depth(node, x, weight, shape)
        swap(node, call_before(node, node.target, images, kernel, bias, residual, [1, 1], [0, 0], [1, 1]))
    elif shape is not None and shape.lacks_channels:
        given = _with_channels(node, x), _with_channels(node, weight)
        swap(node, call_before(node, node.target, *given, *node.args[2:]))


def _backward(node: Node) -> None:
    grad, x, weight, *_, mask = arguments_of(node)
    shape = convolution_shape(node)
    if shape is None or mask[2]:
        return
    if shape.is_first_layer and not mask[0]:
        found = (None, _first_layer_backward(node, shape))
    elif shape.lacks_channels and not mask[0]:
        given = grad, _with_channels(node, x), _with_channels(node, weight)
        whole = call_before(node, aten.convolution_backward.default, *given, *node.args[3:])
        cut = (call_before(node, getitem, whole, 1), 1, 0, int(shape.weight.shape[1]))
        found = (None, call_before(node, aten.slice.Tensor, *cut))
    elif shape.is_turned_around and mask[0]:
        found = _turned_backward(node, shape)
    else:
        return
    for user in list(node.users):
        gradient = found[arguments_of(user)[1]] if user.target is getitem else None
        assert gradient is not None, "no node reads a gradient that is not computed"
        swap(user, gradient)
    node.graph.erase_node(node)


def _first_layer_backward(node: Node, shape: ConvolutionShape) -> Node:
    grad, x, weight = arguments_of(node)[:3]
    images, kernel = _as_depth(node, x, weight, shape)
    args = (grad, images, kernel, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False])
    gradient = call_before(node, getitem, call_before(node, aten.convolution_backward.default, *args), 1)
    before = [p % 2 for p in shape.padding]
    return call_before(node, ours.from_depth.default, gradient, before, list(shape.weight.shape))


def _turned_backward(node: Node, shape: ConvolutionShape) -> tuple[Node, Node | None]:
    grad, _, weight, *_, mask = arguments_of(node)
    turned = call_before(node, aten.flip.default, weight, [2, 3])
    args = (grad, turned, None, [1, 1], shape.turned_padding, shape.dilation, False, [0, 0], shape.groups)
    inputs = call_before(node, aten.convolution.default, *args)
    if not mask[1]:
        return inputs, None
    both = call_before(node, aten.convolution_backward.default, *node.args[:10], [False, True, False])
    return inputs, call_before(node, getitem, both, 1)


# --- pieces


def _as_depth(node: Node, x: Node, weight: Node, shape: ConvolutionShape) -> tuple[Node, Node]:
    """Images and weights with two by two pixels as channels; zeros that surround the images come from nowhere."""
    before = [p + p % 2 for p in shape.padding]
    blocks = [(k + p % 2 + 1) // 2 for k, p in zip(shape.kernel, shape.padding, strict=True)]
    around = [int(size) + b - 1 for size, b in zip(shape.out.shape[2:], blocks, strict=True)]
    value = fake(x)
    if x.target is aten.constant_pad_nd.default and not any(x.args[2:]):
        padded, pads = arguments_of(x)[:2]
        if len(pads) == 4 and min(pads) >= 0:
            x, before = padded, [before[0] + pads[2], before[1] + pads[0]]
    assert value is not None, "images are a tensor"
    channels = max(TENSOR_CORE_CHANNELS, 4 * int(value.shape[1]))
    images = call_before(node, ours.to_depth.default, x, before, around, channels)
    return images, call_before(node, ours.to_depth.default, weight, [p % 2 for p in shape.padding], blocks, channels)


def _with_channels(before: Node, x: Node) -> Node:
    """Images or weights with zeros behind their channels."""
    value = fake(x)
    assert value is not None, "images and weights are tensors"
    behind = VECTOR_CHANNELS - int(value.shape[1])
    return call_before(before, aten.constant_pad_nd.default, x, [*[0] * (2 * value.dim() - 3), behind], 0.0)
