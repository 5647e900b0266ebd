"""Save offsets of one byte for the gradient of max-pooling, in place of positions of eight."""

from __future__ import annotations

from math import prod
from operator import getitem
from typing import Any

import torch
from torch.fx import GraphModule, Node

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from optfuse.compiler.frontend.passes.rewrite import insert, swap

aten, ours = torch.ops.aten, torch.ops.optfuse

#: Offsets in a window are kept as int8.
LARGEST_WINDOW = 127


def keep_offsets(joint: GraphModule) -> None:
    """Let max-pools whose positions only their own gradients read keep offsets in the window. Changes ``joint``.

    Before: ``max_pool2d_with_indices_backward(grad, x, .., getitem(max_pool2d_with_indices(x, ..), 1))``.
    After: ``optfuse.max_pool_backward(grad, x, .., getitem(optfuse.max_pool(x, ..), 1))``.
    """
    for node in joint.graph.find_nodes(op="call_function", target=aten.max_pool2d_with_indices.default):
        sizes = _sizes(node)
        positions = [user for user in node.users if user.target is getitem and user.args[1] == 1]
        gradients = [user for position in positions for user in position.users]
        if sizes is None or not gradients or not all(_is_gradient(user, node) for user in gradients):
            continue
        pool = insert(joint.graph, node, ours.max_pool.default, (node.args[0], *sizes))
        offsets = insert(joint.graph, node, getitem, (pool, 1))
        for gradient in gradients:
            args = (*gradient.args[:2], *sizes, offsets)
            swap(gradient, insert(joint.graph, gradient, ours.max_pool_backward.default, args))
        for user in list(node.users):
            if user in positions:
                joint.graph.erase_node(user)
            else:
                swap(user, insert(joint.graph, user, getitem, (pool, 0)))
        joint.graph.erase_node(node)
    joint.recompile()


def _sizes(node: Node) -> tuple[list[int], list[int], list[int], bool] | None:
    """Kernel, stride, padding and ceil_mode of a call that has no gaps in its windows; None of another."""
    given: list[Any] = [*node.args[1:], *[[], [0], [1], False][len(node.args) - 2 :]]
    kernel, stride, padding, dilation = (_pair(value) for value in given[:4])
    if dilation != [1, 1] or prod(kernel) > LARGEST_WINDOW or node.kwargs:
        return None
    return kernel, stride or kernel, padding, bool(given[4])


def _pair(value: Any) -> list[int]:
    return [int(value[0]), int(value[-1])] if value else []


def _is_gradient(user: Node, node: Node) -> bool:
    same = user.target is aten.max_pool2d_with_indices_backward.default and user.args[1] is node.args[0]
    return same and not user.kwargs
