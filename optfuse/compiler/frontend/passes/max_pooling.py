"""Save less for the gradient of max-pooling: offsets of one byte for positions of eight, and no input of its own.

The gradient's operator takes the whole input, of which it needs the shape alone: in a ResNet 205 MB at batch 128. The
result of a convolution from which pointwise operators compute the input is saved for them anyway, and has that shape.
"""

from __future__ import annotations

from math import prod
from operator import getitem
from typing import Any

import torch
from torch.fx import GraphModule, Node

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from optfuse.compiler.frontend.graph.rewrite import fake, insert, swap
from optfuse.compiler.frontend.torch_internals.torch_sizes import same_numbers

aten, ours = torch.ops.aten, torch.ops.optfuse

#: Offsets in a window are kept as int8.
LARGEST_WINDOW = 127
#: The argument of a pooling's gradient that is asked for its shape and layout only.
_INPUT = {aten.max_pool2d_with_indices_backward.default: 1, ours.max_pool_backward.default: 1}


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


def release_pooled(joint: GraphModule) -> None:
    """Make gradients of pooling in a joint graph read a convolution's result, so that the pooled input is not saved."""
    for target, position in _INPUT.items():
        for node in joint.graph.find_nodes(op="call_function", target=target):
            pooled = node.args[position]
            alike = _convolution_before(pooled)
            if alike is not None:
                node.update_arg(position, alike)


def _convolution_before(pooled: Node) -> Node | None:
    """The convolution that a tensor was computed from by pointwise operators, if its result looks the same."""
    wanted = fake(pooled)
    stack, seen = [pooled], {pooled}
    while stack:
        node = stack.pop()
        value = fake(node)
        if node.target is aten.convolution.default and wanted is not None and value is not None:
            same = value.dtype == wanted.dtype and same_numbers(value.shape, wanted.shape)
            return node if same and same_numbers(value.stride(), wanted.stride()) else None
        pointwise = torch.Tag.pointwise in getattr(node.target, "tags", ())
        if not (pointwise or node.target is aten._to_copy.default):  # noqa: SLF001 - the operator's name
            continue
        for source in node.all_input_nodes:
            found = fake(source)
            if source in seen or found is None or wanted is None:
                continue
            if same_numbers(found.shape, wanted.shape):
                seen.add(source)
                stack.append(source)
    return None
