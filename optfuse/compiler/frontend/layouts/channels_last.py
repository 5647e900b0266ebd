"""Which convolutions are faster with channels last in memory, all of a graph's or none, and what is laid out so too."""

from __future__ import annotations

from itertools import accumulate, pairwise
from math import prod
from operator import mul
from typing import Any

import torch
from torch.fx import GraphModule, Node

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from optfuse.compiler.frontend.convolution_forms.depthwise import leaves_library
from optfuse.compiler.frontend.convolution_forms.grouped_products import mixes_groups
from optfuse.compiler.frontend.convolution_forms.patches import is_patches
from optfuse.compiler.frontend.graph.rewrite import fake
from optfuse.compiler.frontend.torch_internals.torch_fakes import fake_strided
from optfuse.compiler.frontend.torch_internals.torch_sizes import hint_of, known_equal, same_numbers

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
#: The same for videos. Depthwise convolutions of videos that are not ours run in kernels of ATen's, channels-first.
TRANSPOSED_VIDEO, DEPTHWISE_VIDEO = 2.7, -400.0
#: Our kernels for depthwise convolutions are faster channels-last from so many channels on, and slower below.
MANY_CHANNELS, OWN_WINDOW = 32, 3.0

#: Tensors of so many dimensions are images or videos; how they are channels-last.
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_VIDEO = 5


#: Reductions, whose second argument is the dimensions.
_REDUCTIONS = frozenset({aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default})
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
        if leaves_library(node):
            passes = OWN_WINDOW if groups >= MANY_CHANNELS else -OWN_WINDOW
        else:
            passes = _passes_saved(weight, hint_of(prod(images.shape[2:])), int(groups))
            found.append(node.name)
        saved += passes * (1 + backward) * hint_of(images.numel() + result.numel())
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


def laid_out(node: Node, value: Any) -> Any:
    """The fake value of a node among channels-last images: channels-last too where its operands leave it open."""
    if any(rule(node, value) for rule in (_is_undecided, _joins_images, _reduces_images)):
        return as_channels_last(value)
    if not _stacks_images(node):
        return value
    _, channels, kinds, *pixels = value.shape
    outer = list(accumulate([channels * kinds, *reversed(pixels)], mul))
    return fake_strided(value, (outer[-1], kinds, 1, *reversed(outer[:-1])))


def _is_undecided(node: Node, value: Any) -> bool:
    """Whether a pointwise node makes images of values that are the same all over an image: any layout will do."""
    pointwise = torch.Tag.pointwise in getattr(node.target, "tags", ())
    if not pointwise or not is_images(value) or all(known_equal(n, 1) for n in value.shape[2:]):
        return False
    operands = [fake(source) for source in node.all_input_nodes]
    wide = [x for x in operands if x is not None and same_numbers(x.shape, value.shape)]
    return bool(wide) and not any(any(x.stride()[2:]) for x in wide)


def _joins_images(node: Node, value: Any) -> bool:
    """Whether a node concatenates images most of which are channels-last. (Eager execution wants all of them so.)"""
    if node.target is not aten.cat.default or not is_images(value):
        return False
    joined: Any = node.args[0]
    parts = [x for x in map(fake, joined) if x is not None]
    return 2 * sum(hint_of(x.numel()) for x in parts if is_channels_last(x)) > hint_of(value.numel())


def _reduces_images(node: Node, value: Any) -> bool:
    """Whether a node reduces images, in several parts of their channels, that are channels-last."""
    x = fake(node.args[0]) if node.target in _REDUCTIONS else None
    if x is None or not is_images(value) or x.dim() == value.dim():
        return False
    dims: Any = node.args[1]
    reduced = {dim % x.dim() for dim in dims}
    kept = [hint_of(step) for dim, step in enumerate(x.stride()) if dim not in reduced]
    return all(one > other for one, other in pairwise([kept[0], *kept[2:], kept[1]]))


def _stacks_images(node: Node) -> bool:
    """Whether a node makes several channels of each one of channels-last images."""
    if node.target is not aten.stack.default or node.args[1:] != (2,):
        return False
    stacked: Any = node.args[0]
    parts = [fake(part) for part in stacked]
    return all(x is not None and is_images(x) and is_channels_last(x) for x in parts)


def as_channels_last(value: Any) -> Any:
    """A fake value in the layout of channels-last images; None as it is."""
    if value is None:
        return None
    _, channels, *pixels = value.shape
    outer = list(accumulate([channels, *reversed(pixels)], mul))
    return fake_strided(value, (outer[-1], 1, *reversed(outer[:-1])))


def is_channels_last(value: torch.Tensor) -> bool:
    """Whether a value is laid out as channels-last images are, or is none."""
    return not is_images(value) or value.is_contiguous(memory_format=CHANNELS_LAST[value.dim()])
