"""Take the masks of ReLU gradients from values that the backward graph reads anyway.

A ReLU's gradient compares the ReLU's result with zero, which is of another sign nowhere. After a batch norm the kernels
that need the comparison read the convolution's result in any case, and get the sign from it in registers. The ReLU's
result is in memory for the next convolution's gradient, but these kernels would read it on top.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from optfuse.compiler.frontend.graph.rewrite import base_of, insert, is_loop, readers, sized
from optfuse.compiler.frontend.torch_internals.torch_bridge import is_random, is_tangent
from optfuse.compiler.frontend.torch_internals.torch_sizes import same_numbers

aten = torch.ops.aten

_COPY = aten._to_copy.default  # noqa: SLF001 - the operator's name


def derive_relu_masks(joint: GraphModule) -> None:
    """Let ReLUs' masks look at what the backward half reads anyway: the ReLU's input, or a matmul's operand.

    Changes ``joint``. Before: ``y = relu(norm(c)); le(y, 0)``. After: ``le(norm(c), 0)``, where loops of the backward
    half read all of c. Before: ``y = relu(x); mm(view(y, a), w); le(y, 0)``. After: ``le(view(view(y, a), b), 0)``.
    """
    backward = _backward_half(joint)
    for mask in joint.graph.find_nodes(op="call_function", target=aten.le.Scalar):
        relu = base_of(mask.args[0])
        source = relu.args[0] if relu.target is aten.relu.default else None
        if not isinstance(source, Node) or mask.args[1] != 0 or not _looks_alike(relu, mask.args[0]):
            continue
        operand = _operand(relu, backward) if sized(relu).is_contiguous() else None
        sources = _sources(source, backward) if _is_pointwise(source) and _looks_alike(source, relu) else set()
        if sources and all(_is_read(one, relu, backward) for one in sources):
            mask.update_arg(0, source)
        elif operand is not None:
            mask.update_arg(0, insert(joint.graph, mask, aten.view.default, (operand, list(sized(relu).shape))))
    joint.recompile()


def _operand(value: Node, backward: set[Node]) -> Node | None:
    """A reshaped form of a value that a library call of the backward half reads."""
    views = [user for user in value.users if user.target is aten.view.default and user not in backward]
    return next((view for view in views if any(one in backward for one in filter(_is_call, readers(view)))), None)


def _is_call(node: Node) -> bool:
    return not is_loop(node)


def _backward_half(joint: GraphModule) -> set[Node]:
    """The nodes that depend on a gradient of the results."""
    found: set[Node] = set()
    for node in joint.graph.nodes:
        if is_tangent(node) if node.op == "placeholder" else any(one in found for one in node.all_input_nodes):
            found.add(node)
    return found


def _looks_alike(one: Node, other: Node) -> bool:
    a, b = sized(one), sized(other)
    if a is None or b is None or a.dtype != b.dtype:
        return False
    return same_numbers(a.shape, b.shape) and same_numbers(a.stride(), b.stride())


def _is_pointwise(node: Node) -> bool:
    """Whether each element is computed from one of each operand, by a loop."""
    known = torch.Tag.pointwise in getattr(node.target, "tags", ()) or node.target is _COPY
    return known and node.op == "call_function" and not is_random(node.target)


def _sources(node: Node, backward: set[Node]) -> set[Node]:
    """The values of as many elements that a value is computed from in loops: those that no loop computes, or that a
    library call of the backward half reads, so that they are saved.
    """
    count = sized(node).numel()
    found: set[Node] = set()
    ahead, seen = [node], {node}
    while ahead:
        for operand in map(base_of, ahead.pop().all_input_nodes):
            value = sized(operand)
            if operand in seen or value is None or value.numel() < count:
                continue
            seen.add(operand)
            called = any(one in backward for one in filter(_is_call, readers(operand)))
            if called or not _is_pointwise(operand):
                found.add(operand)
            else:
                ahead.append(operand)
    return found


def _is_read(source: Node, relu: Node, backward: set[Node]) -> bool:
    """Whether loops of the backward half read a value, or what others compute from it without the ReLU."""
    ahead, seen = [source], {source, relu}
    while ahead:
        for user in readers(ahead.pop()):
            value = sized(user)
            if user in seen or value is None or not is_loop(user):
                continue
            if user in backward:
                return True
            if _is_pointwise(user) and value.is_floating_point():
                seen.add(user)
                ahead.append(user)
    return False
