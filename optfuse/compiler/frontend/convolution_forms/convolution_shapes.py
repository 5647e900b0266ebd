"""What a convolution, or the gradient of one, is like, for the passes that give it a faster form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from optfuse.compiler.frontend.convolution_forms.patches import lie_side_by_side
from optfuse.compiler.frontend.graph.rewrite import fake, insert

aten = torch.ops.aten

_HALF = frozenset({torch.float16, torch.bfloat16})
#: Images of at most so many channels are rearranged, to so many channels: what tensor cores take at a time.
FEW_CHANNELS = 4
TENSOR_CORE_CHANNELS = 16


@dataclass(frozen=True, slots=True)
class ConvolutionShape:
    """What a convolution of images or videos in half precision is like."""

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
    def has_unit_stride(self) -> bool:
        """Whether it is one of images, not of videos, with a stride of 1."""
        return self.stride == [1, 1]

    @property
    def channels_by_group(self) -> tuple[int, int]:
        """How many channels each group takes, and how many it makes."""
        return int(self.weight.shape[1]), int(self.weight.shape[0]) // self.groups

    @property
    def is_first_layer(self) -> bool:
        """Whether two by two pixels may become channels."""
        few = self.images.dim() == 4 and self.images.shape[1] <= FEW_CHANNELS and self.groups == 1
        larger = min(self.kernel) > 1 and max(self.kernel) > 2  # windows of two by two may lie side by side
        return few and larger and self.stride == [2, 2] and self.dilation == [1, 1]

    @property
    def lacks_channels(self) -> bool:
        """Whether zeros are added to the channels. Patches that lie side by side become matmuls instead."""
        few = self.images.shape[1] <= FEW_CHANNELS and self.groups == 1 and max(self.kernel) > 1
        images = self.images.dim() == 4
        patches = images and lie_side_by_side(self.images.shape[2:], self.kernel, self.stride, self.padding)
        return few and not self.is_first_layer and not patches

    @property
    def is_turned_around(self) -> bool:
        """Whether the gradient of the images is a convolution as fast as the forward one."""
        depthwise = self.weight.shape[1] == 1 and self.groups == self.weight.shape[0] == self.images.shape[1] > 1
        return depthwise and self.has_unit_stride and min(self.turned_padding) >= 0

    @property
    def turned_padding(self) -> list[int]:
        """The padding of the convolution that is the gradient of the images."""
        return [d * (k - 1) - p for k, p, d in zip(self.kernel, self.padding, self.dilation, strict=True)]


def convolution_shape(node: Node) -> ConvolutionShape | None:
    """What a convolution, or the gradient of one, is like; None if it is transposed, or not of half precision."""
    arguments = arguments_of(node)
    if node.target is torch.ops.optfuse.convolution_relu.default:
        x, weight, _, _, stride, padding, dilation = arguments
        return _shape(x, weight, fake(node), stride, padding, dilation, 1)
    behind = node.target is aten.convolution_backward.default
    x, weight = arguments[behind : behind + 2]
    stride, padding, dilation, transposed, _, groups = arguments[3 + behind : 9 + behind]
    out = fake(arguments[0]) if behind else fake(node)
    return None if transposed else _shape(x, weight, out, stride, padding, dilation, groups)


def arguments_of(node: Node) -> list[Any]:
    """A node's arguments, to be taken for what they are."""
    return list(node.args)


def call_before(before: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A call that stands before a node, with its fake value."""
    return insert(before.graph, before, target, args, kwargs)


def _shape(x: Any, weight: Any, out: torch.Tensor | None, *rest: Any) -> ConvolutionShape | None:
    images, kernel = fake(x), fake(weight)
    if images is None or kernel is None or out is None or images.dim() not in (4, 5):
        return None
    if {images.dtype, kernel.dtype} - _HALF or 0 in (*images.shape, *out.shape):
        return None
    stride, padding, dilation, groups = rest
    steps, around, apart = ([int(n) for n in _each(value, kernel.dim() - 2)] for value in (stride, padding, dilation))
    return ConvolutionShape(images, kernel, out, steps, around, apart, groups)


def _each(value: Any, count: int) -> list[Any]:
    """A number for each dimension, where one may stand for all."""
    return list(value) if len(value) == count else [value[0]] * count
