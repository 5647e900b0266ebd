"""Grouped convolutions whose groups are wide, as one convolution for each group, in half precision.

For groups of more than 128 channels cuDNN has no kernel: it computes one group after another, and transposes each
before and after. Here one kernel puts the groups one after another, channels-last, and one joins the results.

What that is worth on an H200 is in docs/lab/notebook/library_calls.md.
"""

from __future__ import annotations

from operator import getitem

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
from optfuse.compiler.frontend.passes.groups import WIDEST

aten, ours = torch.ops.aten, torch.ops.optfuse


def separate_groups(captured: Captured) -> Captured:
    """Rewrite grouped convolutions of images, and their gradients, whose groups take or make many channels."""
    graph = copied(captured.graph)
    for node in list(graph.graph.nodes):
        if node.target in (aten.convolution.default, aten.convolution_backward.default) and not mixes_groups(node):
            shape = convolution_shape(node)
            if shape is not None and shape.groups > 1 and shape.images.dim() == 4 and _is_wide(shape):
                (_forward if node.target is aten.convolution.default else _backward)(node, shape.groups)
    return with_graph(captured, graph)


def _is_wide(shape: ConvolutionShape) -> bool:
    return min(shape.channels_by_group) > WIDEST


def _forward(node: Node, groups: int) -> None:
    x, weight, bias, *rest, _ = arguments_of(node)
    images, weights = _images(node, x, groups), _rows(node, weight, groups)
    biases = [None] * groups if bias is None else _rows(node, bias, groups)
    results = [
        call_before(node, aten.convolution.default, *each, *rest, 1)
        for each in zip(images, weights, biases, strict=True)
    ]
    swap(node, call_before(node, aten.cat.default, results, 1))


def _backward(node: Node, groups: int) -> None:
    grad, x, weight, sizes, *rest, _, mask = arguments_of(node)
    grads, images, weights = _images(node, grad, groups), _images(node, x, groups), _rows(node, weight, groups)
    size = None if sizes is None else [sizes[0] // groups]
    each = [
        call_before(node, aten.convolution_backward.default, *parts, size, *rest, 1, mask)
        for parts in zip(grads, images, weights, strict=True)
    ]
    for user in list(node.users):
        place = arguments_of(user)[1]
        parts = [call_before(node, getitem, one, place) for one in each]
        swap(user, call_before(node, aten.cat.default, parts, 1 if place == 0 else 0))
    node.graph.erase_node(node)


def _images(node: Node, x: Node, groups: int) -> list[Node]:
    """The channels of each group, channels-last."""
    stacked = call_before(node, ours.stack_groups.default, x, groups)
    return [call_before(node, aten.select.int, stacked, 0, group) for group in range(groups)]


def _rows(node: Node, x: Node, groups: int) -> list[Node]:
    """The part of each group along the first dimension."""
    size = x.meta["val"].shape[0] // groups
    return [call_before(node, aten.slice.Tensor, x, 0, size * k, size * (k + 1)) for k in range(groups)]
