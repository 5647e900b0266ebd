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
class _Shape:
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
    x, weight, bias, stride, padding, dilation, transposed, _, groups = _arguments(node)
    shape = None if transposed else _shape(x, weight, fake(node), stride, padding, dilation, groups)
    if shape is None or bias is not None:
        return
    if shape.is_first_layer:
        images, kernel = _as_depth(node, x, weight, shape)
        args = (images, kernel, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        swap(node, _call(node, aten.convolution.default, *args))
    elif shape.lacks_channels:
        given = _with_channels(node, x), _with_channels(node, weight)
        swap(node, _call(node, aten.convolution.default, *given, *node.args[2:]))


def _with_relu(node: Node) -> None:
    x, weight, bias, residual, stride, padding, dilation = _arguments(node)
    shape = _shape(x, weight, fake(node), stride, padding, dilation, 1)
    if shape is not None and shape.is_first_layer:
        images, kernel = _as_depth(node, x, weight, shape)
        swap(node, _call(node, node.target, images, kernel, bias, residual, [1, 1], [0, 0], [1, 1]))
    elif shape is not None and shape.lacks_channels:
        given = _with_channels(node, x), _with_channels(node, weight)
        swap(node, _call(node, node.target, *given, *node.args[2:]))


def _backward(node: Node) -> None:
    grad, x, weight, _, stride, padding, dilation, transposed, _, groups, mask = _arguments(node)
    shape = None if transposed else _shape(x, weight, fake(grad), stride, padding, dilation, groups)
    if shape is None or mask[2]:
        return
    if shape.is_first_layer and not mask[0]:
        found = (None, _first_layer_backward(node, shape))
    elif shape.lacks_channels and not mask[0]:
        given = grad, _with_channels(node, x), _with_channels(node, weight)
        whole = _call(node, aten.convolution_backward.default, *given, *node.args[3:])
        cut = (_call(node, getitem, whole, 1), 1, 0, int(shape.weight.shape[1]))
        found = (None, _call(node, aten.slice.Tensor, *cut))
    elif shape.is_turned_around and mask[0]:
        found = _turned_backward(node, shape)
    else:
        return
    for user in list(node.users):
        gradient = found[_arguments(user)[1]] if user.target is getitem else None
        assert gradient is not None, "no node reads a gradient that is not computed"
        swap(user, gradient)
    node.graph.erase_node(node)


def _first_layer_backward(node: Node, shape: _Shape) -> Node:
    grad, x, weight = _arguments(node)[:3]
    images, kernel = _as_depth(node, x, weight, shape)
    args = (grad, images, kernel, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False])
    gradient = _call(node, getitem, _call(node, aten.convolution_backward.default, *args), 1)
    before = [p % 2 for p in shape.padding]
    return _call(node, ours.from_depth.default, gradient, before, list(shape.weight.shape))


def _turned_backward(node: Node, shape: _Shape) -> tuple[Node, Node | None]:
    grad, _, weight, *_, mask = _arguments(node)
    turned = _call(node, aten.flip.default, weight, [2, 3])
    args = (grad, turned, None, [1, 1], shape.turned_padding, shape.dilation, False, [0, 0], shape.groups)
    inputs = _call(node, aten.convolution.default, *args)
    if not mask[1]:
        return inputs, None
    both = _call(node, aten.convolution_backward.default, *node.args[:10], [False, True, False])
    return inputs, _call(node, getitem, both, 1)


# --- pieces


def _shape(x: Any, weight: Any, out: torch.Tensor | None, *rest: Any) -> _Shape | None:
    images, kernel = fake(x), fake(weight)
    if images is None or kernel is None or out is None or images.dim() != 4:
        return None
    if {images.dtype, kernel.dtype} - _HALF or 0 in (*images.shape, *out.shape):
        return None
    stride, padding, dilation, groups = rest
    return _Shape(images, kernel, out, _pair(stride), _pair(padding), _pair(dilation), groups)


def _arguments(node: Node) -> list[Any]:
    return list(node.args)


def _pair(value: Any) -> list[int]:
    return [int(value[0]), int(value[-1])]


def _as_depth(node: Node, x: Node, weight: Node, shape: _Shape) -> tuple[Node, Node]:
    """Images and weights with two by two pixels as channels; zeros that surround the images come from nowhere."""
    before = [p + p % 2 for p in shape.padding]
    blocks = [(k + p % 2 + 1) // 2 for k, p in zip(shape.kernel, shape.padding, strict=True)]
    around = [int(size) + b - 1 for size, b in zip(shape.out.shape[2:], blocks, strict=True)]
    value = fake(x)
    if x.target is aten.constant_pad_nd.default and not any(x.args[2:]):
        padded, pads = _arguments(x)[:2]
        if len(pads) == 4 and min(pads) >= 0:
            x, before = padded, [before[0] + pads[2], before[1] + pads[0]]
    assert value is not None, "images are a tensor"
    channels = max(TENSOR_CORE_CHANNELS, 4 * int(value.shape[1]))
    images = _call(node, ours.to_depth.default, x, before, around, channels)
    return images, _call(node, ours.to_depth.default, weight, [p % 2 for p in shape.padding], blocks, channels)


def _with_channels(before: Node, x: Node) -> Node:
    """Images or weights with zeros behind their channels."""
    value = fake(x)
    assert value is not None, "images and weights are tensors"
    return _call(before, aten.constant_pad_nd.default, x, [0, 0, 0, 0, 0, VECTOR_CHANNELS - int(value.shape[1])], 0.0)


def _call(before: Node, target: Any, *args: Any) -> Node:
    return insert(before.graph, before, target, args)
