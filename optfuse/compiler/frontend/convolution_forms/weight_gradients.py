"""Gradients of convolutions' weights that cuDNN is slow at, as an operator of ours.

With channels last, cuDNN's gradient of the weights takes two to ten times what our kernel takes for 16 or 32 channels,
as in first layers and at the rims of U-Nets, in groups of 128 channels of few pixels, and where a group makes another
number of channels than it takes. What was measured is in docs/lab/notebook/library_calls.md.
"""

from __future__ import annotations

from math import prod
from operator import getitem

import torch
from torch.fx import Node

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from optfuse.compiler.frontend.convolution_forms.convolution_shapes import (
    ConvolutionShape,
    arguments_of,
    convolution_shape,
)
from optfuse.compiler.frontend.graph.rewrite import become, insert
from optfuse.compiler.frontend.torch_internals.torch_bridge import TO_COPY
from optfuse.compiler.frontend.torch_internals.torch_sizes import hint_of
from optfuse.compiler.ops.convolution_weights import CONVOLUTION_MADE, CONVOLUTION_PIXELS, CONVOLUTION_TAKEN

aten, ours = torch.ops.aten, torch.ops.optfuse

#: Convolutions that take so many channels are slow in the library, if they make no fewer than the first of these.
FEW_CHANNELS = (16, 32)
#: So are groups of so many channels, for results of at most so many pixels.
WIDE_GROUP, FEW_PIXELS = 128, 14 * 14
#: Longer windows are not, and with fewer pixels, of all images, nothing is gained.
LONGEST_WINDOW, LEAST_PIXELS = 4, 512
#: Programs that a gradient is split into, at least, and the most pixels of one.
PROGRAMS, MOST_PIXELS = 264, 5000


def has_slow_weights(node: Node) -> bool:
    """Whether a node is a convolution's backward whose gradient of the weights our kernel computes faster."""
    if node.target is not aten.convolution_backward.default or not arguments_of(node)[10][1]:
        return False
    shape = convolution_shape(node)
    if shape is None or shape.images.dim() != 4:
        return False
    taken, made = shape.channels_by_group
    pixels = hint_of(prod(shape.out.shape[2:]))
    if not 1 < max(shape.kernel) <= LONGEST_WINDOW or hint_of(shape.out.shape[0]) * pixels < LEAST_PIXELS:
        return False
    if shape.groups == 1:
        return taken in FEW_CHANNELS and made >= FEW_CHANNELS[0]
    if taken == made:
        return taken == WIDE_GROUP and pixels <= FEW_PIXELS
    return min(taken, made) >= FEW_CHANNELS[0]


def compute_weights(node: Node) -> dict[Node, torch.Tensor]:
    """Take the gradient of the weights out of a node of ``has_slow_weights``, whose images are channels-last.

    Before: ``_, w = convolution_backward(g, x, ..)``, w of (O, T, 3, 3). After: ``w`` is a view of
    ``sum(convolution_weights(g, x, [3, 3], .., parts), [0])``, of (9, O, T).

    Returns:
        The node whose value has become another, with that.
    """
    shape = convolution_shape(node)
    assert shape is not None, "the node is a convolution's backward"
    gradient, x, *_, mask = arguments_of(node)
    users = [user for user in node.users if user.target is getitem]
    numbers = (shape.kernel, shape.stride, shape.padding, shape.dilation, shape.groups, _parts(shape))
    sums = insert(node.graph, node, ours.convolution_weights.default, (gradient, x, *numbers))
    whole = insert(node.graph, node, aten.sum.dim_IntList, (sums, [0]))
    rounded = insert(node.graph, node, TO_COPY, (whole,), {"dtype": shape.weight.dtype})
    turned = insert(node.graph, node, aten.permute.default, (rounded, [1, 2, 0]))
    found = {
        item: become(item, aten.view.default, turned, list(map(int, shape.weight.shape)))
        for item in users
        if arguments_of(item)[1] == 1
    }
    if mask[0] or mask[2]:
        node.args = (*node.args[:10], [mask[0], False, mask[2]])
        images, _, bias = node.meta["val"]
        node.meta = {**node.meta, "val": type(node.meta["val"])((images, None, bias))}
    else:
        node.graph.erase_node(node)
    return found


def _parts(shape: ConvolutionShape) -> int:
    """How many parts of the pixels the gradient is split into."""
    taken, made = shape.channels_by_group
    window = shape.kernel
    blocks = shape.groups * -(-made // CONVOLUTION_MADE) * -(-taken // CONVOLUTION_TAKEN)
    programs = prod(window[:-1]) * -(-window[-1] // 4) * blocks
    pixels = hint_of(shape.out.numel()) // hint_of(shape.out.shape[1])
    wanted = max(-(-PROGRAMS // programs), -(-pixels // MOST_PIXELS))
    return max(1, min(wanted, pixels // (4 * CONVOLUTION_PIXELS)))
