"""Depthwise convolutions that no library has a fast kernel for, and their gradients, as operators of ours.

cuDNN has fast kernels for square windows of 3, 5 and 7 pixels of channels-last images. The 9 x 9 of ConvMixer, the
1 x 11 of InceptionNeXt, dilated windows, the last four tokens of Mamba and Qwen 3.5, and videos are computed by kernels
of ours (``compiler.ops.depthwise``), in whatever layout the images have: docs/lab/notebook/library_calls.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from operator import getitem
from typing import Any

import torch
from torch.fx import Node

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from optfuse.compiler.frontend.convolution_forms.convolution_shapes import arguments_of
from optfuse.compiler.frontend.graph.rewrite import become, fake, insert
from optfuse.compiler.frontend.torch_internals.torch_bridge import TO_COPY
from optfuse.compiler.frontend.torch_internals.torch_sizes import hint_of

aten, ours = torch.ops.aten, torch.ops.optfuse

_FORWARD, _BACKWARD = aten.convolution.default, aten.convolution_backward.default
_DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32})

#: The square windows, and strides, for which cuDNN has fast kernels.
LIBRARY_WINDOWS, LIBRARY_STRIDES = (3, 5, 7), (1, 2)
#: Longer rows of a window are not unrolled by our kernels, so that the library has them.
LONGEST_ROW = 64
#: cuDNN's gradient of the weights is slow for fewer pixels of all images than this, and in float32 for this window.
FEW_PIXELS, SLOW_WINDOW = 512, 7
#: Programs that a gradient of weights is split into, at least, and channels of one.
PROGRAMS, CHANNELS = 1024, 64

#: What a convolution, or a part of its gradient, is computed by.
_OUT, _IMAGES, _WEIGHTS = "out", "images", "weights"


@dataclass(frozen=True, slots=True)
class _Depthwise:
    """A depthwise convolution's tensors and numbers."""

    images: torch.Tensor
    out: torch.Tensor
    window: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]

    @property
    def numbers(self) -> tuple[list[int], ...]:
        return self.window, self.stride, self.padding, self.dilation

    def is_ours(self, part: str) -> bool:
        """Whether our kernel computes the result, or the gradient of the images or of the weights, faster."""
        if not self._has_library_kernel():
            return True
        if part == _IMAGES:
            return max(self.stride) > 1
        if part == _WEIGHTS:
            few = hint_of(self.out.numel()) < FEW_PIXELS * hint_of(self.out.shape[1])
            return few or (self.images.dtype == torch.float32 and max(self.window) == SLOW_WINDOW)
        return False

    def _has_library_kernel(self) -> bool:
        several = self.images.dim() == 4 and hint_of(self.images.shape[0]) > 1
        square = len({*self.window}) == len({*self.stride}) == 1 and set(self.dilation) == {1}
        return several and square and self.window[0] in LIBRARY_WINDOWS and self.stride[0] in LIBRARY_STRIDES


def is_own_depthwise(node: Node) -> bool:
    """Whether a node is a depthwise convolution, or the gradient of one, a part of which our kernels compute."""
    found = _depthwise(node)
    if found is None:
        return False
    if node.target is _FORWARD:
        return found.is_ours(_OUT)
    return any(found.is_ours(part) for part in _wanted(node))


def leaves_library(node: Node) -> bool:
    """Whether no part of a depthwise convolution, or of the gradient of one, stays a call of the library."""
    found = _depthwise(node)
    return found is not None and all(found.is_ours(p) for p in (_wanted(node) if node.target is _BACKWARD else [_OUT]))


def compute_depthwise(node: Node) -> dict[Node, torch.Tensor]:
    """Turn a node of ``is_own_depthwise`` into our operators. Its users keep what they used, perhaps in other strides.

    A gradient stays, without what our kernels compute, where the library has a part of it.

    Before: ``y = convolution(x, w, None, .., C)``, x of (N, C, H, W) and w of (C, 1, 9, 9). After:
    ``y = depthwise(x, clone(t(view(w, [C, 81]))), [9, 9], ..)``.

    Returns:
        The nodes whose values have become others, with those: the node itself, or the items of a backward.
    """
    found = _depthwise(node)
    assert found is not None, "the node is a depthwise convolution"
    return _forward(node, found) if node.target is _FORWARD else _backward(node, found)


def _depthwise(node: Node) -> _Depthwise | None:
    if node.target not in (_FORWARD, _BACKWARD):
        return None
    backward = node.target is _BACKWARD
    x, weight = (fake(operand) for operand in node.args[backward : backward + 2])
    out: Any = fake(node.args[0]) if backward else fake(node)
    stride, padding, dilation, transposed, _, groups = arguments_of(node)[3 + backward : 9 + backward]
    if x is None or weight is None or out is None or transposed or x.dim() != weight.dim() or not 3 <= x.dim() <= 5:
        return None
    if {x.dtype, weight.dtype, out.dtype} != {x.dtype} or x.dtype not in _DTYPES or 0 in (*x.shape, *out.shape):
        return None
    if weight.shape[1] != 1 or not 1 < groups == weight.shape[0] or weight.shape[-1] > LONGEST_ROW:
        return None
    window = [int(size) for size in weight.shape[2:]]
    steps, around, apart = ([int(n) for n in _each(value, len(window))] for value in (stride, padding, dilation))
    return _Depthwise(x, out, window, steps, around, apart)


def _each(numbers: Sequence[Any], count: int) -> list[Any]:
    """A number for each dimension, where one may stand for all."""
    return list(numbers) if len(numbers) == count else [numbers[0]] * count


def _forward(node: Node, found: _Depthwise) -> dict[Node, torch.Tensor]:
    x, weight, bias = node.args[:3]
    args = (x, _filters(node, weight), *found.numbers)
    if bias is None:
        return {node: become(node, ours.depthwise.default, *args)}
    result = insert(node.graph, node, ours.depthwise.default, args)
    added = insert(node.graph, node, aten.view.default, (bias, [-1, *[1] * len(found.window)]))
    return {node: become(node, aten.add.Tensor, result, added)}


def _backward(node: Node, found: _Depthwise) -> dict[Node, torch.Tensor]:
    gradient, x, weight = node.args[:3]
    items = {arguments_of(user)[1]: user for user in node.users if user.target is getitem}
    place = partial(insert, node.graph, node)
    relaid: dict[Node, torch.Tensor] = {}
    left = [k < 2 and k in items and not found.is_ours((_IMAGES, _WEIGHTS)[k]) for k in range(3)]
    for k, item in items.items():
        if left[k]:
            continue
        if k == 0:
            args = (gradient, _filters(node, weight), list(found.images.shape), *found.numbers)
            relaid[item] = become(item, ours.depthwise_images.default, *args)
        elif k == 1:
            sums = place(ours.depthwise_weights.default, (gradient, x, *found.numbers, _parts(found)))
            whole = place(aten.sum.dim_IntList, (sums, [0]))
            rounded = whole if found.images.dtype == torch.float32 else place(TO_COPY, (whole,), _as(found.images))
            turned = place(aten.t.default, (rounded,))
            relaid[item] = become(item, aten.view.default, turned, [found.images.shape[1], 1, *found.window])
        else:
            relaid[item] = become(item, aten.sum.dim_IntList, gradient, [0, *range(2, found.images.dim())])
    if any(left):
        relaid[node] = become(node, _BACKWARD, *node.args[:10], left)
    else:
        node.graph.erase_node(node)
    return relaid


def _wanted(node: Node) -> list[str]:
    """The parts of a gradient that are read, and that our kernels may compute."""
    read = {arguments_of(user)[1] for user in node.users if user.target is getitem}
    return [part for k, part in enumerate((_IMAGES, _WEIGHTS)) if k in read]


def _as(like: torch.Tensor) -> dict[str, Any]:
    return {"dtype": like.dtype}


def _filters(node: Node, weight: Any) -> Node:
    """Weights (C, 1, ...) as (taps, C), with channels side by side."""
    count, taps = int(weight.meta["val"].shape[0]), prod(weight.meta["val"].shape[2:])
    rows = insert(node.graph, node, aten.reshape.default, (weight, [count, int(taps)]))
    turned = insert(node.graph, node, aten.t.default, (rows,))
    return insert(node.graph, node, aten.clone.default, (turned,), {"memory_format": torch.contiguous_format})


def _parts(found: _Depthwise) -> int:
    """How many parts of the images' rows a gradient of the weights is split into."""
    channels = hint_of(found.images.shape[1])
    lines = hint_of(found.out.numel()) // channels // hint_of(found.out.shape[-1])
    programs = prod(found.window[:-1]) * -(-found.window[-1] // 4) * -(-channels // CHANNELS)
    return max(1, min(lines, -(-PROGRAMS // programs)))
