"""Convolutions in the form in which a library is fast at them, in half precision.

- Few channels and a stride of two (the first layer of most nets): two by two pixels become channels, without stride.
- Few channels otherwise: zeros are added to them, up to what tensor cores take.
- The gradient of a depthwise convolution's input, with a stride of one: a convolution with the kernel turned around.

What that is worth on an H200 is in docs/lab/notebook/library_calls.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch.fx import Node

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from optfuse.compiler.frontend.captured import Captured
from optfuse.compiler.frontend.passes.rewrite import copied, fake, insert, swap, with_graph
from optfuse.compiler.frontend.patches import lie_side_by_side

aten, ours = torch.ops.aten, torch.ops.optfuse

_HALF = frozenset({torch.float16, torch.bfloat16})
#: Images of at most so many channels are rearranged, to so many channels: what tensor cores take at a time.
FEW_CHANNELS = 4
TENSOR_CORE_CHANNELS = 16
#: Where pixels stay what they are, channels are added up to so many: a vector.
VECTOR_CHANNELS = 8


@dataclass(frozen=True, slots=True)
class ConvolutionShape:
    """What a two-dimensional convolution of half precision is like."""

    images: torch.Tensor
    weight: torch.Tensor
    out: torch.Tensor
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int

    @property
    def kernel(self) -> list[int]:
        return [int(size) for size in self.weight.shape[2:]]

    @property
    def channels_by_group(self) -> tuple[int, int]:
        """How many channels each group takes, and how many it makes."""
        return int(self.weight.shape[1]), int(self.weight.shape[0]) // self.groups

    @property
    def is_first_layer(self) -> bool:
        """Whether two by two pixels may become channels."""
        few = self.images.shape[1] <= FEW_CHANNELS and self.groups == 1
        larger = min(self.kernel) > 1 and max(self.kernel) > 2  # windows of two by two may lie side by side
        return few and larger and self.stride == [2, 2] and self.dilation == [1, 1]

    @property
    def lacks_channels(self) -> bool:
        """Whether zeros are added to the channels. Patches that lie side by side become matmuls instead."""
        few = self.images.shape[1] <= FEW_CHANNELS and self.groups == 1 and max(self.kernel) > 1
        patches = lie_side_by_side(self.images.shape[2:], self.kernel, self.stride, self.padding)
        return few and not self.is_first_layer and not patches

    @property
    def is_turned_around(self) -> bool:
        """Whether the gradient of the images is a convolution as fast as the forward one."""
        depthwise = self.weight.shape[1] == 1 and self.groups == self.weight.shape[0] == self.images.shape[1] > 1
        return depthwise and self.stride == [1, 1] and min(self.turned_padding) >= 0

    @property
    def turned_padding(self) -> list[int]:
        """The padding of the convolution that is the gradient of the images."""
        return [d * (k - 1) - p for k, p, d in zip(self.kernel, self.padding, self.dilation, strict=True)]


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
    x, weight, bias, residual, stride, padding, dilation = arguments_of(node)
    shape = _shape(x, weight, fake(node), stride, padding, dilation, 1)
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


def convolution_shape(node: Node) -> ConvolutionShape | None:
    """What a convolution, or the gradient of one, is like; None if it is transposed, or not of half precision."""
    behind = node.target is aten.convolution_backward.default
    arguments = arguments_of(node)
    x, weight = arguments[behind : behind + 2]
    stride, padding, dilation, transposed, _, groups = arguments[3 + behind : 9 + behind]
    out = fake(arguments[0]) if behind else fake(node)
    return None if transposed else _shape(x, weight, out, stride, padding, dilation, groups)


def _shape(x: Any, weight: Any, out: torch.Tensor | None, *rest: Any) -> ConvolutionShape | None:
    images, kernel = fake(x), fake(weight)
    if images is None or kernel is None or out is None or images.dim() != 4:
        return None
    if {images.dtype, kernel.dtype} - _HALF or 0 in (*images.shape, *out.shape):
        return None
    stride, padding, dilation, groups = rest
    return ConvolutionShape(images, kernel, out, _pair(stride), _pair(padding), _pair(dilation), groups)


def arguments_of(node: Node) -> list[Any]:
    """A node's arguments, to be taken for what they are."""
    return list(node.args)


def _pair(value: Any) -> list[int]:
    return [int(value[0]), int(value[-1])]


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
    return call_before(before, aten.constant_pad_nd.default, x, [0, 0, 0, 0, 0, behind], 0.0)


def call_before(before: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A call that stands before a node, with its fake value."""
    return insert(before.graph, before, target, args, kwargs)
