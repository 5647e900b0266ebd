"""Depthwise convolutions that make several channels of each one, as several depthwise convolutions, in half precision.

cuDNN has fast kernels for one channel of each; for two it computes one group after another, with transposes before and
after. FastViT halves its images in this way.
"""

from __future__ import annotations

from operator import getitem

import torch
from torch.fx import Node

from optfuse.compiler.frontend.convolution_forms.convolution_shapes import (
    ConvolutionShape,
    arguments_of,
    call_before,
    convolution_shape,
)
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.graph.rewrite import copied, swap, with_graph
from optfuse.compiler.frontend.torch_internals.torch_fakes import fake_strided

aten = torch.ops.aten

#: The most channels made of one.
MOST_MADE = 4


def separate_depths(captured: Captured) -> Captured:
    """Rewrite the convolutions, and their gradients, whose groups take one channel and make a few.

    Before: ``y = convolution(x, w, None, .., groups)``, x of (N, groups, H, W) and w of (groups * 2, 1, 3, 3). After:
    ``y`` is a view of ``stack([convolution(x, w0, None, .., groups), convolution(x, w1, None, .., groups)], 2)``.
    """
    graph = copied(captured.graph)
    for node in list(graph.graph.nodes):
        if node.target in (aten.convolution.default, aten.convolution_backward.default):
            shape = convolution_shape(node)
            if shape is not None and _makes_several(shape):
                (_forward if node.target is aten.convolution.default else _backward)(node, shape)
    return with_graph(captured, graph)


def _makes_several(shape: ConvolutionShape) -> bool:
    taken, made = shape.channels_by_group
    return shape.groups > 1 and taken == 1 and 1 < made <= MOST_MADE and shape.images.dim() == 4


def _forward(node: Node, shape: ConvolutionShape) -> None:
    x, weight, bias, *rest = arguments_of(node)
    biases = [None] * shape.channels_by_group[1] if bias is None else _kinds(node, bias, shape, 0)
    results = [
        call_before(node, aten.convolution.default, x, *each, *rest)
        for each in zip(_kinds(node, weight, shape, 0), biases, strict=True)
    ]
    swap(node, _stacked(node, results, shape, 1))


def _backward(node: Node, shape: ConvolutionShape) -> None:
    gradient, x, weight, sizes, *rest = arguments_of(node)
    size = None if sizes is None else [shape.groups]
    each = [
        call_before(node, aten.convolution_backward.default, part, x, kernels, size, *rest)
        for part, kernels in zip(_kinds(node, gradient, shape, 1), _kinds(node, weight, shape, 0), strict=True)
    ]
    for user in list(node.users):
        place = arguments_of(user)[1]
        first, *others = [call_before(node, getitem, one, place) for one in each]
        if place == 0:
            for other in others:
                first = call_before(node, aten.add.Tensor, first, other)
            swap(user, first)
        else:
            swap(user, _stacked(user, [first, *others], shape, 0))
    node.graph.erase_node(node)


def _stacked(node: Node, results: list[Node], shape: ConvolutionShape, dim: int) -> Node:
    """The channels that are made of each one side by side, in the layout of ``node``, which they replace."""
    whole = node.meta["val"]
    stacked = call_before(node, aten.stack.default, results, dim + 1)
    apart = whole.unflatten(dim, (shape.groups, len(results)))
    stacked.meta["val"] = fake_strided(stacked.meta["val"], apart.stride())
    return call_before(node, aten.view.default, stacked, list(whole.shape))


def _kinds(node: Node, x: Node, shape: ConvolutionShape, dim: int) -> list[Node]:
    """The first channel that is made of each one, the second, ...: along dimension ``dim``."""
    made = shape.channels_by_group[1]
    sizes = list(x.meta["val"].shape)
    apart = call_before(node, aten.view.default, x, [*sizes[:dim], shape.groups, made, *sizes[dim + 1 :]])
    return [call_before(node, aten.select.int, apart, dim + 1, k) for k in range(made)]
