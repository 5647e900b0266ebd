"""Regions of a model under ``torch.inference_mode``, as metrics and samplers have, as regions without gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import grad_mode
from torch.fx import GraphModule, Node

from optfuse.compiler.frontend.graph.rewrite import copied

_ENTER, _EXIT = grad_mode._enter_inference_mode, grad_mode._exit_inference_mode  # noqa: SLF001 - Dynamo's, as below
_SET: Any = torch._C._set_grad_enabled  # noqa: SLF001


def leave_inference_mode(graph: GraphModule, *, enabled: bool) -> GraphModule:
    """The graph with gradients switched off where inference mode is entered: AOTAutograd fails at views made in it.

    Before: ``mode = enter(True); y = x[0]; exit(mode)``. After: ``set_grad_enabled(False); y = x[0];
    set_grad_enabled(True)``. What leaves such a region is a tensor as under ``no_grad``.

    Args:
        graph: Of torch functions, as Dynamo captures it.
        enabled: Whether gradients are enabled where it begins.
    """
    nodes = graph.graph.nodes
    opened = {node for node in nodes if node.target is _ENTER}
    if not opened or any(node.target is _EXIT and node.args[0] not in opened for node in nodes):
        return graph
    graph = copied(graph)
    inside, outer = False, dict[Node, tuple[bool, bool]]()
    for node in list(graph.graph.nodes):
        if node.target is _ENTER:
            outer[node] = inside, enabled
            inside = bool(node.args[0])
            enabled = not inside
        elif node.target is _EXIT:
            inside, enabled = outer[node.args[0]]
        elif node.target is _SET and not inside:
            enabled = bool(node.args[0])
            continue
        elif node.target is not _SET:
            continue
        with graph.graph.inserting_before(node):
            graph.graph.call_function(_SET, (enabled,))
        if node.target is not _ENTER:
            graph.graph.erase_node(node)
    for node in outer:
        graph.graph.erase_node(node)
    graph.recompile()
    return graph
