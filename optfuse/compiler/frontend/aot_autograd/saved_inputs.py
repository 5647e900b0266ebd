"""Let a backward graph have the values that its forward graph was given, also of inputs that the function writes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch.fx import GraphModule, Node

from optfuse.compiler.frontend.graph.rewrite import base_of, insert

aten = torch.ops.aten

_SAVED_AS = "optfuse_saved_as"


def save_copies(forward: GraphModule, results: int, written: Collection[int]) -> None:
    """Save a copy of each input that is written, in place of the input or a view of it.

    Torch's minimum cut saves an input rather than a copy of it, and autograd keeps no value: it refuses the backward
    pass where it sees the write, and where it does not, gradients are those at the new value.

    Args:
        forward: A forward graph, which is changed.
        results: Its first outputs, which are not saved.
        written: The numbers of its inputs that the function writes.
    """
    inputs = [node for k, node in enumerate(forward.graph.find_nodes(op="placeholder")) if k in written]
    begin = next(node for node in forward.graph.nodes if node.op != "placeholder")
    output = forward.graph.output_node()
    saved: Any = output.args[0]
    flat = list(saved)
    for position in range(results, len(flat)):
        node = flat[position]
        if isinstance(node, Node) and base_of(node) in inputs:
            made = insert(forward.graph, begin if node.op == "placeholder" else node.next, aten.clone.default, (node,))
            made.meta[_SAVED_AS] = node.name
            flat[position] = made
    output.args = (tuple(flat),)
    forward.recompile()


def saved_name(node: Node) -> str:
    """The name by which a backward graph knows an output of its forward graph."""
    return node.meta.get(_SAVED_AS, node.name)
