"""Which convolutions are faster with channels last in memory: all of a graph's, or none."""

from __future__ import annotations

from math import prod

import torch
from torch.fx import GraphModule, Node

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from optfuse.compiler.frontend.grouped_products import mixes_groups
from optfuse.compiler.frontend.passes.rewrite import fake
from optfuse.compiler.frontend.patches import is_patches
from optfuse.compiler.frontend.torch_sizes import hint_of

aten = torch.ops.aten

#: Convolutions of no more channels than this are no reason to choose channels-last.
FEW_CHANNELS = 4
#: What channels-last saves, in times that the images are read or written: the transposes before and after a
#: convolution; vectors that a product of pixels has not. It loses where groups have no more than two channels, a number
#: of them that is no power of two (less in wide groups), or more on one side than on the other.
TRANSPOSED, UNALIGNED_PIXELS = 3.5, 2.0
TINY_GROUPS, ODD_GROUPS, WIDE_ODD_GROUPS, UNEQUAL_GROUPS = -40.0, -12.0, -4.0, -1.5
#: Channels of a wide group, more than this.
WIDE_GROUP = 128
#: The same for videos. Depthwise convolutions of videos run in kernels of ATen's, which want channels-first.
TRANSPOSED_VIDEO, DEPTHWISE_VIDEO = 2.7, -400.0

#: Tensors of so many dimensions are images or videos; how they are channels-last.
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_VIDEO = 5


RELU_TOO = torch.ops.optfuse.convolution_relu.default
CONVOLUTIONS = frozenset({aten.convolution.default, aten.convolution_backward.default, RELU_TOO})


def channels_last_convolutions(graph: GraphModule) -> frozenset[str]:
    """Convolutions of images and videos, where channels-last saves more in all of them than some of them lose."""
    nodes = [node for node in graph.graph.nodes if node.target in CONVOLUTIONS and not becomes_products(node)]
    found: list[str] = []
    wide, saved = False, 0.0
    for node in nodes:
        backward = node.target is aten.convolution_backward.default
        weight, images = fake(node.args[2 if backward else 1]), fake(node.args[1 if backward else 0])
        result = fake(node.args[0]) if backward else fake(node)
        groups = 1 if node.target is RELU_TOO else node.args[9 if backward else 8]
        if weight is None or images is None or result is None or not is_images(weight):
            continue
        wide = wide or max(weight.shape[:2]) > FEW_CHANNELS
        passes = _passes_saved(weight, hint_of(prod(images.shape[2:])), int(groups))
        saved += passes * (1 + backward) * hint_of(images.numel() + result.numel())
        found.append(node.name)
    return frozenset(found) if wide and saved > 0 else frozenset()


def _passes_saved(weight: torch.Tensor, pixels: int, groups: int) -> float:
    """What channels-last saves of a convolution's time, in times that its images are read or written once.

    Measured on an H100 and an H200: docs/lab/notebook/library_calls.md.
    """
    taken, made = int(weight.shape[1]), int(weight.shape[0]) // groups
    if groups > 1 and taken == 1 and weight.dim() == _VIDEO:
        return DEPTHWISE_VIDEO
    if groups > 1 and taken > 1:
        if max(taken, made) <= 2:
            return TINY_GROUPS
        if taken & (taken - 1) or made & (made - 1):
            return ODD_GROUPS if taken <= WIDE_GROUP else WIDE_ODD_GROUPS
        if taken != made:
            return UNEQUAL_GROUPS
    if prod(weight.shape[2:]) == 1:
        return 0.0 if pixels % 8 == 0 else UNALIGNED_PIXELS
    return TRANSPOSED_VIDEO if weight.dim() == _VIDEO else TRANSPOSED


def becomes_products(node: Node) -> bool:
    """Whether a convolution, or the gradient of one, becomes matrix products."""
    return is_patches(node) or mixes_groups(node)


def is_images(value: torch.Tensor) -> bool:
    """Whether a tensor has the dimensions of images, (N, C, H, W), or of videos, (N, C, D, H, W)."""
    return value.dim() in CHANNELS_LAST
