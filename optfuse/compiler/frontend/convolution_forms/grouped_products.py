"""Grouped convolutions of single pixels, and their gradients, as batched matrix products, in half precision.

cuDNN computes one group after another, each with transposes before and after, or in a kernel without tensor cores. With
channels last, the pixels of all groups are one batch of matrices, whose rows lie apart by the channels of all groups.
"""

from __future__ import annotations

from math import prod
from operator import getitem
from typing import Any

import torch
from torch.fx import Node

from optfuse.compiler.frontend.convolution_forms.convolution_shapes import arguments_of
from optfuse.compiler.frontend.graph.rewrite import become, become_images, fake, insert
from optfuse.compiler.frontend.torch_internals.torch_fakes import fake_strided

aten = torch.ops.aten

_HALF = frozenset({torch.float16, torch.bfloat16})
#: With fewer channels on either side a group's product is no work for tensor cores.
FEWEST_CHANNELS = 8

_FORWARD, _BACKWARD = aten.convolution.default, aten.convolution_backward.default


def mixes_groups(node: Node) -> bool:
    """Whether a node is a convolution, or a convolution's backward, of groups of channels at each pixel."""
    if node.target not in (_FORWARD, _BACKWARD):
        return False
    backward = node.target is _BACKWARD
    x, w = (fake(operand) for operand in node.args[backward : backward + 2])
    stride, padding, _, transposed, _, groups = arguments_of(node)[3 + backward : 9 + backward]
    if x is None or w is None or transposed or groups == 1 or x.dim() != w.dim() or {x.dtype, w.dtype} - _HALF:
        return False
    single = prod(w.shape[2:]) == 1 and set(stride) == {1} and not any(padding)
    return single and min(w.shape[0] // groups, w.shape[1]) >= FEWEST_CHANNELS and 0 not in x.shape


def multiply_groups(node: Node) -> dict[Node, torch.Tensor]:
    """Turn a node of ``mixes_groups`` into products. Its users keep what they used, perhaps in other strides.

    Before: ``y = convolution(x, w, None, .., groups)``, x of (N, groups * C, H, W) and w of (groups * K, C, 1, 1).
    After: ``y`` is a view of ``bmm(a, b)``, with a of (groups, N * H * W, C) and b of (groups, C, K).

    Returns:
        The nodes whose values have become others, with those: the node itself, or the items of a backward.
    """
    return _multiply_forward(node) if node.target is _FORWARD else _multiply_backward(node)


def _multiply_forward(node: Node) -> dict[Node, torch.Tensor]:
    x, weight, bias = node.args[:3]
    groups = node.args[8]
    filters = insert(node.graph, node, aten.transpose.int, (_by_group(node, weight, groups), 1, 2))
    last = _channels_last(node, _product(node, _rows(node, x, groups), filters), x)
    if bias is not None:
        last = insert(node.graph, node, aten.add.Tensor, (last, bias))
    return {node: become_images(node, last)}


def _multiply_backward(node: Node) -> dict[Node, torch.Tensor]:
    gradient, x, weight = node.args[:3]
    groups, rows = node.args[9], _rows(node, gradient, node.args[9])
    items = {user.args[1]: user for user in node.users if user.target is getitem}
    found: dict[Node, torch.Tensor] = {}
    if 0 in items:
        product = _product(node, rows, _by_group(node, weight, groups))
        found[items[0]] = become_images(items[0], _channels_last(node, product, x))
    if 1 in items:
        turned = insert(node.graph, node, aten.transpose.int, (rows, 1, 2))
        product = insert(node.graph, node, aten.bmm.default, (turned, _rows(node, x, groups)))
        found[items[1]] = become(items[1], aten.view.default, product, _shape(weight))
    if 2 in items:
        found[items[2]] = become(items[2], aten.sum.dim_IntList, gradient, [0, *range(2, len(_shape(x)))])
    node.graph.erase_node(node)
    return found


def _rows(node: Node, x: Any, groups: Any) -> Node:
    """Images (N, groups * C, ...) as (groups, pixels, C)."""
    rank = len(_shape(x))
    last = insert(node.graph, node, aten.permute.default, (x, [0, *range(2, rank), 1]))
    rows = insert(node.graph, node, aten.reshape.default, (last, [-1, groups, _shape(x)[1] // groups]))
    return insert(node.graph, node, aten.permute.default, (rows, [1, 0, 2]))


def _by_group(node: Node, weight: Any, groups: Any) -> Node:
    """Weights (groups * K, C, 1, ...) as (groups, K, C)."""
    made, taken = _shape(weight)[:2]
    return insert(node.graph, node, aten.reshape.default, (weight, [groups, made // groups, taken]))


def _product(node: Node, left: Node, right: Node) -> Node:
    """The products (groups, pixels, K), with the channels of a pixel side by side in memory."""
    product = insert(node.graph, node, aten.bmm.default, (left, right))
    groups, _, channels = _shape(product)
    product.meta["val"] = fake_strided(product.meta["val"], (channels, groups * channels, 1))
    return product


def _channels_last(node: Node, product: Node, like: Any) -> Node:
    """Products (groups, pixels, K) as (N, ..., groups * K), of the size of images (N, ...)."""
    batch, _, *pixels = _shape(like)
    groups, _, channels = _shape(product)
    rows = insert(node.graph, node, aten.permute.default, (product, [1, 0, 2]))
    return insert(node.graph, node, aten.reshape.default, (rows, [batch, *pixels, groups * channels]))


def _shape(node: Node) -> list[int]:
    return list(node.meta["val"].shape)
