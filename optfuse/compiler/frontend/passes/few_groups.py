"""Convolutions of few groups as convolutions of all channels, with zeros between groups, in half precision.

A tensor core multiplies as many channels as a few narrow groups have together, and cuDNN has no fast kernel for groups
that make more or fewer channels than they take: ResNeSt's, EdgeTPU's. What that is worth is in
docs/lab/notebook/library_calls.md.
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
from optfuse.compiler.frontend.graph.rewrite import copied, fake, swap, with_graph

aten = torch.ops.aten

#: The most channels that groups take together, where each makes as many as it takes, where there are two such groups,
#: and where each makes more or fewer.
MOST_SAME, MOST_OF_TWO, MOST_OTHERS = 64, 128, 256


def join_groups(captured: Captured) -> Captured:
    """Rewrite grouped convolutions, and their gradients, that are slower than one of all channels.

    Before: ``y = convolution(x, w, .., 2)``, x of (N, 64, H, W) and w of (128, 32, 3, 3). After:
    ``y = convolution(x, w2, .., 1)``, w2 of (128, 64, 3, 3) with zeros where another group's channels are.
    """
    graph = copied(captured.graph)
    for node in list(graph.graph.nodes):
        if node.target in (aten.convolution.default, aten.convolution_backward.default) and not mixes_groups(node):
            shape = convolution_shape(node)
            if shape is not None and _is_slow(shape):
                (_forward if node.target is aten.convolution.default else _backward)(node, shape)
    return with_graph(captured, graph)


def _is_slow(shape: ConvolutionShape) -> bool:
    taken, made = shape.channels_by_group
    together = shape.groups * taken
    if shape.groups == 1 or taken == 1 or shape.images.dim() != 4:
        return False
    if taken != made:
        return together <= MOST_OTHERS
    return together <= (MOST_OF_TWO if shape.groups == 2 else MOST_SAME)


def _forward(node: Node, shape: ConvolutionShape) -> None:
    x, weight, bias, *rest, _ = arguments_of(node)
    swap(node, call_before(node, aten.convolution.default, x, _whole(node, weight, shape), bias, *rest, 1))


def _backward(node: Node, shape: ConvolutionShape) -> None:
    grad, x, weight, sizes, *rest, _, mask = arguments_of(node)
    args = (grad, x, _whole(node, weight, shape), sizes, *rest, 1, mask)
    joined = call_before(node, aten.convolution_backward.default, *args)
    for user in list(node.users):
        place = arguments_of(user)[1]
        gradient = call_before(node, getitem, joined, place)
        swap(user, _of_groups(node, gradient, shape) if place == 1 else gradient)
    node.graph.erase_node(node)


def _whole(node: Node, weight: Node, shape: ConvolutionShape) -> Node:
    """Weights (groups * made, taken, ...) as (groups * made, groups * taken, ...), zeros between groups."""
    made, taken, *window = _sizes(shape)
    apart = call_before(node, aten.view.default, weight, [shape.groups, made, 1, taken, *window])
    spread = call_before(node, aten.where.ScalarOther, _is_own(node, shape), apart, 0.0)
    return _merged(node, spread, [shape.groups * made, shape.groups * taken, *window])


def _of_groups(node: Node, weight: Node, shape: ConvolutionShape) -> Node:
    """The weights within groups of weights as ``_whole`` makes them."""
    made, taken, *window = _sizes(shape)
    apart = call_before(node, aten.view.default, weight, [shape.groups, made, shape.groups, taken, *window])
    own = call_before(node, aten.where.ScalarOther, _is_own(node, shape), apart, 0.0)
    summed = call_before(node, aten.sum.dim_IntList, own, [2])
    return _merged(node, summed, [shape.groups * made, taken, *window])


def _merged(node: Node, weight: Node, sizes: list[int]) -> Node:
    """Weights with the dimensions of groups joined to those of channels, which lie apart if channels come last."""
    value = fake(weight)
    if value is not None and not value.is_contiguous():
        weight = call_before(node, aten.clone.default, weight, memory_format=torch.contiguous_format)
    return call_before(node, aten.view.default, weight, sizes)


def _is_own(node: Node, shape: ConvolutionShape) -> Node:
    """Whether groups (groups, 1, groups, 1, ...) that make and take a channel are one."""
    device: Any = shape.weight.device
    rest = [1] * (1 + len(shape.kernel))
    numbers = call_before(node, aten.arange.start_step, 0, shape.groups, 1, device=device, dtype=torch.int64)
    makes = call_before(node, aten.view.default, numbers, [shape.groups, 1, 1, *rest])
    takes = call_before(node, aten.view.default, numbers, [1, 1, shape.groups, *rest])
    return call_before(node, aten.eq.Tensor, makes, takes)


def _sizes(shape: ConvolutionShape) -> list[int]:
    """The channels that a group makes and takes, and the window."""
    taken, made = shape.channels_by_group
    return [made, taken, *shape.kernel]
