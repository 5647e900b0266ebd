"""Fold what depends on no input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.graph.evaluate import Evaluator, constant_nodes
from optfuse.compiler.frontend.graph.rewrite import (
    VIEWS,
    copied,
    escaping,
    fake,
    insert,
    swap,
    with_constant,
    with_graph,
)
from optfuse.compiler.frontend.torch_internals.torch_bridge import TO_COPY

aten = torch.ops.aten

#: A folded constant larger than this stays an expression: reading it would cost more than computing it.
LARGEST_CONSTANT = 16 << 20

#: A folded constant may have gaps between its rows up to so many elements, or up to its own size.
LARGEST_GAPS = 1 << 18

#: An expression of at most this many pointwise operators over arange and full stays one: loops compute it for nothing.
INLINE_LIMIT = 3

_SOURCES = frozenset({aten.arange.default, aten.arange.start, aten.arange.start_step, aten.full.default})
_POINTWISE_TAG = torch.Tag.pointwise


def fold_constants(captured: Captured) -> Captured:
    """The graph with all that depends on no input evaluated: uniform values become ``full``, others constants.

    Before: ``mul(full([4], 2), arange(4) .. many operators ..)``. After: ``get_attr folded_0``.
    A constant that the user gets to see is copied first: the user may write into it. Short expressions of positions
    stay, since loops compute them from their own indices; so do large tensors.
    """
    graph = copied(captured.graph)
    constants = constant_nodes(graph, captured.constants)
    evaluator = Evaluator(constants, captured.constants)
    seen = escaping(replace(captured, graph=graph))
    folded: dict[str, torch.Tensor] = {}
    used = [
        node
        for node in graph.graph.nodes
        if node in constants
        and node.op == "call_function"
        and any(user not in constants for user in node.users)
        and fake(node) is not None
        and not _is_symbolic(node)
    ]
    # all of them before the first is replaced: one may be computed from another
    values = [evaluator.value(node) for node in used]
    for node, value in zip(used, values, strict=True):
        if _is_uniform(value):
            swap(node, _uniform(node, value))
        elif value.numel() * value.element_size() <= LARGEST_CONSTANT:
            constant = with_constant(graph, node, _alone(value), captured.constants, folded)
            constant.meta = dict(node.meta)
            swap(node, insert(graph.graph, node, aten.clone.default, (constant,)) if node in seen else constant)
    return with_graph(captured, graph, folded)


def _is_symbolic(node: Node) -> bool:
    """Whether a node is a short expression of arange and full, or a view of one."""
    pointwise, positions = 0, False
    stack, visited = [node], {node}
    while stack:
        current = stack.pop()
        if current.op != "call_function":
            return False
        target: Any = current.target
        if target in _SOURCES:
            positions = positions or target is not aten.full.default
            continue
        if target not in VIEWS and target is not TO_COPY:
            pointwise += 1
            if _POINTWISE_TAG not in getattr(target, "tags", ()) or pointwise > INLINE_LIMIT:
                return False
        for source in current.all_input_nodes:
            if source not in visited:
                visited.add(source)
                stack.append(source)
    return positions or pointwise == 0


def _is_uniform(value: torch.Tensor) -> bool:
    if value.numel() == 0 or value.dtype.is_complex:
        return False
    return bool((value == value.flatten()[0]).all())


def _uniform(node: Node, value: torch.Tensor) -> Node:
    """``full`` of the value's shape: loops turn it into a scalar."""
    scalar = value.flatten()[0].item()
    kwargs = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
    return insert(node.graph, node, aten.full.default, (list(value.shape), scalar), kwargs)


def _alone(value: torch.Tensor) -> torch.Tensor:
    """A copy in memory of its own whose rows are as far apart as the value's: kernels may need them aligned so.

    What is repeated is written out; what overlaps otherwise, or has wide gaps, is laid out anew.
    """
    stride, end = list(value.stride()), 1
    for k in sorted(range(value.dim()), key=lambda k: stride[k]):
        if value.shape[k] > 1 and stride[k]:
            if stride[k] < end:
                return value.clone(memory_format=torch.preserve_format)
            end = stride[k] * value.shape[k]
    for k in reversed(range(value.dim())):
        if value.shape[k] > 1 and not stride[k]:
            stride[k], end = end, end * value.shape[k]
    if end > max(2 * value.numel(), LARGEST_GAPS):
        return value.clone(memory_format=torch.preserve_format)
    return torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device).copy_(value)
