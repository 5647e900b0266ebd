"""Save less for the gradient of max-pooling: offsets of one byte for positions of eight, and no input of its own.

The gradient's operator takes the whole input, of which it needs the shape alone: in a ResNet 205 MB at batch 128. The
result of a convolution from which pointwise operators compute the input is saved for them anyway, and has that shape.
"""

from __future__ import annotations

from math import prod
from operator import getitem
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from optfuse.compiler.frontend.graph.rewrite import fake, insert, swap
from optfuse.compiler.frontend.torch_internals.torch_sizes import same_numbers
from optfuse.compiler.ops.max_pool import per_dimension

aten, ours = torch.ops.aten, torch.ops.optfuse

#: Offsets in a window are kept as int8.
LARGEST_WINDOW = 127
#: The dimensions of a window, a pooling, and its gradient.
_POOLINGS = (
    (2, aten.max_pool2d_with_indices.default, aten.max_pool2d_with_indices_backward.default),
    (3, aten.max_pool3d_with_indices.default, aten.max_pool3d_with_indices_backward.default),
)
#: The argument of a pooling's gradient that is asked for its shape and layout only.
_INPUT = {
    **{gradient: 1 for _, _, gradient in _POOLINGS},
    ours.max_pool_backward.default: 1,
}


def keep_offsets(joint: GraphModule) -> None:
    """Let max-pools whose positions only their own gradients read keep offsets in the window. Changes ``joint``.

    Before: ``max_pool2d_with_indices_backward(grad, x, .., getitem(max_pool2d_with_indices(x, ..), 1))``.
    After: ``optfuse.max_pool_backward(grad, x, .., getitem(optfuse.max_pool(x, ..), 1))``. The same for ``max_pool3d``.
    """
    for rank, pool, gradient in _POOLINGS:
        for node in joint.graph.find_nodes(op="call_function", target=pool):
            _keep_offsets(joint.graph, node, gradient, rank)
    joint.recompile()


def _keep_offsets(graph: Graph, node: Node, gradient: Any, rank: int) -> None:
    sizes = _sizes(node, rank)
    positions = [user for user in node.users if user.target is getitem and user.args[1] == 1]
    gradients = [user for position in positions for user in position.users]
    if sizes is None or not gradients or not all(_is_gradient(user, node, gradient) for user in gradients):
        return
    pool = insert(graph, node, ours.max_pool.default, (node.args[0], *sizes))
    offsets = insert(graph, node, getitem, (pool, 1))
    for user in gradients:
        args = (*user.args[:2], *sizes, offsets)
        swap(user, insert(graph, user, ours.max_pool_backward.default, args))
    for user in list(node.users):
        if user in positions:
            graph.erase_node(user)
        else:
            swap(user, insert(graph, user, getitem, (pool, 0)))
    graph.erase_node(node)


def _sizes(node: Node, rank: int) -> tuple[list[int], list[int], list[int], bool] | None:
    """Kernel, stride, padding and ceil_mode of a call that has no gaps in its windows; None of another."""
    given: list[Any] = [*node.args[1:], *[[], [0], [1], False][len(node.args) - 2 :]]
    numbers = (given[0], given[1] or given[0], given[2], given[3])
    kernel, stride, padding, dilation = (list(per_dimension(value, rank)) for value in numbers)
    if max(dilation) > 1 or prod(kernel) > LARGEST_WINDOW or node.kwargs:
        return None
    return kernel, stride, padding, bool(given[4])


def _is_gradient(user: Node, node: Node, gradient: Any) -> bool:
    return user.target is gradient and user.args[1] is node.args[0] and not user.kwargs


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
