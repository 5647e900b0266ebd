"""Convolutions whose windows neither overlap nor leave gaps, as matrix products over rearranged images.

A patch embedding is one, and so is a down-sampling by 2 x 2, or a window as large as the image: each window is a row of
a matrix. The copy that rearranges is a generated kernel, which may do it together with whatever computes the image.
Convolution libraries have no fast kernels for few channels or large windows, and convert layouts before and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from operator import getitem, mul
from typing import Any

import torch
from torch.fx import Node

from optfuse.compiler.frontend.graph.rewrite import become, become_images, fake, insert
from optfuse.compiler.frontend.torch_internals.torch_fakes import fake_result, fake_strided
from optfuse.compiler.frontend.torch_internals.torch_sizes import hint_of

aten = torch.ops.aten

#: Long rows of a matmul's operands start on multiples of so many bytes, or its fast kernels do not apply.
VECTOR_BYTES = 16
#: Shorter rows are not worth padding.
SHORTEST_ROW = 512

_FORWARD, _BACKWARD = aten.convolution.default, aten.convolution_backward.default


def is_patches(node: Node) -> bool:
    """Whether a node is a convolution, or a convolution's backward, of windows that lie side by side."""
    if node.target not in (_FORWARD, _BACKWARD):
        return False
    image, weight, *_ = _operands(node)
    options = node.args[3:] if node.target is _FORWARD else node.args[4:]
    stride, padding, dilation, transposed, _, groups = options[:6]
    x, w = fake(image), fake(weight)
    if x is None or w is None or transposed or groups != 1 or 0 in (x.numel(), w.numel()) or x.dim() != w.dim():
        return False
    kernel = list(w.shape[2:])
    together = all(d == 1 or k == 1 for d, k in zip(_all(dilation, kernel), kernel, strict=True))
    return together and lie_side_by_side(x.shape[2:], kernel, _all(stride, kernel), padding) and prod(kernel) > 1


def lie_side_by_side(
    image: Sequence[Any], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> bool:
    """Whether windows neither overlap nor leave gaps: of that size apart, or one as large as the image."""
    whole = [isinstance(size, int) and size == k for size, k in zip(image, kernel, strict=True)]
    return not any(padding) and all(one or step == k for one, step, k in zip(whole, stride, kernel, strict=True))


def multiply_patches(node: Node) -> dict[Node, torch.Tensor]:
    """Turn a node of ``is_patches`` into products. Its users keep what they used, perhaps in other strides.

    Before: ``y = convolution(x, w, b, [4, 4], ..)``, x of (N, C, H, W). After: ``y = permute(view(addmm(b, a, w')))``
    where ``a``, of (N * H/4 * W/4, C * 16), is a copy of x by windows. A backward becomes a product for each gradient.

    Returns:
        The nodes whose values have become others, with those: the node itself, or the items of a backward.
    """
    return _multiply_forward(node) if node.target is _FORWARD else _multiply_backward(node)


def _multiply_forward(node: Node) -> dict[Node, torch.Tensor]:
    image, weight, _ = _operands(node)
    bias = node.args[2]
    rows, columns = _windows(node, image, weight), _filters(node, image, weight)
    turned = insert(node.graph, node, aten.t.default, (columns,))
    if bias is None:
        product = insert(node.graph, node, aten.mm.default, (rows, turned))
    else:
        product = insert(node.graph, node, aten.addmm.default, (bias, rows, turned))
    sizes = [_shape(image)[0], *_counts(image, weight), _shape(weight)[0]]
    return {node: become_images(node, insert(node.graph, node, aten.view.default, (product, sizes)))}


def _multiply_backward(node: Node) -> dict[Node, torch.Tensor]:
    image, weight, gradient = _operands(node)
    graph, rank = node.graph, len(_shape(image))
    items = {user.args[1]: user for user in node.users if user.target is getitem}
    found: dict[Node, torch.Tensor] = {}
    last = insert(graph, node, aten.permute.default, (gradient, [0, *range(2, rank), 1]))
    rows = _matrix(node, last, rank - 1)
    if 0 in items:
        product = insert(graph, node, aten.mm.default, (rows, _filters(node, image, weight)))
        found[items[0]] = _become_gradient(items[0], node, _aligned(product), image, weight)
    if 1 in items:
        turned = insert(graph, node, aten.t.default, (rows,))
        product = insert(graph, node, aten.mm.default, (turned, _windows(node, image, weight)))
        out, channels, *kernel = _shape(weight)
        if _channels_are_last(image, weight):
            filters = insert(graph, node, aten.view.default, (product, [out, *kernel, channels]))
            found[items[1]] = become_images(items[1], filters)
        else:
            found[items[1]] = become(items[1], aten.view.default, product, [out, channels, *kernel])
    if 2 in items:
        found[items[2]] = become(items[2], aten.sum.dim_IntList, gradient, [0, *range(2, rank)])
    graph.erase_node(node)
    return found


# --- operands as matrices


def _windows(node: Node, image: Node, weight: Node) -> Node:
    """The image as a matrix: a row a window, a column a place in it. Channels come last where they do in memory."""
    kernel, are_last = _shape(weight)[2:], _channels_are_last(image, weight)  # of the whole image, as for the filters
    for dim, size in enumerate(kernel, start=2):  # what is left over is in no window
        image = insert(node.graph, node, aten.unfold.default, (image, dim, size, size))
    rank = len(kernel)
    outer, inner = range(2, 2 + rank), range(2 + rank, 2 + 2 * rank)
    order = [0, *outer, *inner, 1] if are_last else [0, *outer, 1, *inner]
    return _matrix(node, insert(node.graph, node, aten.permute.default, (image, order)), 1 + rank)


def _filters(node: Node, image: Node, weight: Node) -> Node:
    """The weight as a matrix: a row an output channel, columns as in ``_windows``."""
    if _channels_are_last(image, weight):
        order = [0, *range(2, len(_shape(weight))), 1]
        weight = insert(node.graph, node, aten.permute.default, (weight, order))
    return _matrix(node, weight, 1)


def _matrix(node: Node, source: Node, lead: int) -> Node:
    """A matrix whose rows are the first ``lead`` dimensions: a view if strides and alignment allow it, else a copy."""
    shape = _shape(source)
    sizes = [prod(shape[:lead]), prod(shape[lead:])]
    try:
        seen = fake_result(aten.view.default, (source, sizes), {})
        fits = seen.stride(1) == 1 and (sizes[1] < SHORTEST_ROW or _is_aligned(seen))
    except (RuntimeError, ValueError):  # strides that do not allow the view
        fits = False
    if not fits:
        format_ = {"memory_format": torch.contiguous_format}
        source = _aligned(insert(node.graph, node, aten.clone.default, (source,), format_), lead)
    # torch's own operators may lay out what comes here otherwise than is planned: then they copy
    return insert(node.graph, node, aten.reshape.default, (source, sizes))


def _aligned(node: Node, lead: int = 1) -> Node:
    """Let long rows (the first ``lead`` dimensions of a contiguous node) start on multiples of VECTOR_BYTES."""
    value = node.meta["val"]
    unit = max(1, VECTOR_BYTES // value.element_size())
    columns = prod(value.shape[lead:])
    row = columns + -columns % unit
    if row != columns >= SHORTEST_ROW:
        outer = list(accumulate([row, *reversed(value.shape[1:lead])], mul))
        node.meta = {**node.meta, "val": fake_strided(value, (*reversed(outer), *value.stride()[lead:]))}
    return node


def _is_aligned(matrix: torch.Tensor) -> bool:
    return matrix.stride(0) * matrix.element_size() % VECTOR_BYTES == 0


# --- results in the place of what there was


def _become_gradient(item: Node, node: Node, product: Node, image: Node, weight: Node) -> torch.Tensor:
    """The gradient by windows as that of the image, in its layout; zero where there is no window."""
    graph, counts, kernel = node.graph, _counts(image, weight), _shape(weight)[2:]
    batch, channels, *sizes = _shape(image)
    rank, last = len(kernel), _channels_are_last(image, weight)
    covered = [count * size for count, size in zip(counts, kernel, strict=True)]
    inner = [*kernel, channels] if last else [channels, *kernel]
    windows = insert(graph, node, aten.view.default, (product, [batch, *counts, *inner]))
    first = rank + (1 if last else 2)  # of the dimensions within a window
    pairs = [dim for k in range(rank) for dim in (1 + k, first + k)]
    order = [0, *pairs, 2 * rank + 1] if last else [0, rank + 1, *pairs]
    turned = insert(graph, node, aten.permute.default, (windows, order))
    copy = insert(graph, node, aten.clone.default, (turned,), {"memory_format": torch.contiguous_format})
    shape = [batch, *covered, channels] if last else [batch, channels, *covered]
    pads = [n for size, done in zip(reversed(sizes), reversed(covered), strict=True) for n in (0, size - done)]
    if any(pads):
        copy = insert(graph, node, aten.view.default, (copy, shape))
        pads = [0, 0, *pads] if last else pads
        copy = insert(graph, node, aten.constant_pad_nd.default, (copy, pads, 0))
        shape = _shape(copy)
    if last:
        return become_images(item, insert(graph, node, aten.view.default, (copy, shape)))
    return become(item, aten.view.default, copy, shape)


# --- facts


def _operands(node: Node) -> tuple[Any, Any, Any]:
    """Image, weight, and the gradient of a backward."""
    if node.target is _FORWARD:
        return node.args[0], node.args[1], None
    return node.args[1], node.args[2], node.args[0]


def _all(given: Any, kernel: Sequence[int]) -> list[int]:
    """An option for every dimension: one that is given once holds for all."""
    values = list(given)
    return values * len(kernel) if len(values) == 1 else values


def _shape(node: Node) -> list[int]:
    return list(node.meta["val"].shape)


def _counts(image: Node, weight: Node) -> list[int]:
    """How many windows there are along each dimension."""
    return [size // kernel for size, kernel in zip(_shape(image)[2:], _shape(weight)[2:], strict=True)]


def _channels_are_last(image: Node, weight: Node) -> bool:
    """Whether rows of the matrices have channels last: as the image has them, unless it is smaller than the filters."""
    value, filters = image.meta["val"], weight.meta["val"]
    return value.shape[1] > 1 and value.stride(1) == 1 and hint_of(value.numel()) >= hint_of(filters.numel())
