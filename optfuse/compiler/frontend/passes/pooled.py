"""Keep the input of max-pooling out of what is saved: its gradient needs positions, and the input's shape alone.

The operator takes the whole input, so it would be saved for the backward graph: in a ResNet 205 MB at batch 128 that
no kernel reads. The result of a convolution from which pointwise operators compute the input is saved for them anyway,
and has the same shape.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from optfuse.compiler.frontend.passes.rewrite import fake

aten, ours = torch.ops.aten, torch.ops.optfuse

#: The argument of a pooling's gradient that is asked for its shape and layout only.
_INPUT = {aten.max_pool2d_with_indices_backward.default: 1, ours.max_pool_backward.default: 1}


def release_pooled(joint: GraphModule) -> None:
    """Let poolings' gradients in a joint graph look at a convolution's result in place of what was pooled."""
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
            same = (value.shape, value.stride(), value.dtype) == (wanted.shape, wanted.stride(), wanted.dtype)
            return node if same else None
        pointwise = torch.Tag.pointwise in getattr(node.target, "tags", ())
        if not (pointwise or node.target is aten._to_copy.default):  # noqa: SLF001 - the operator's name
            continue
        for source in node.all_input_nodes:
            found = fake(source)
            if source not in seen and found is not None and wanted is not None and found.shape == wanted.shape:
                seen.add(source)
                stack.append(source)
    return None
