"""Merge identical nodes."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.graph.rewrite import copied, escaping, is_impure, swap, with_graph
from optfuse.compiler.frontend.torch_internals.torch_bridge import is_random


def merge_duplicates(captured: Captured) -> Captured:
    """The graph with common subexpressions merged: nodes with equal operators and arguments become one.

    Before: ``a = exp(x); b = exp(x); add(a, b)``. After: ``a = exp(x); add(a, a)``.
    Random operators never merge; nor do two values that the user would then see in one memory.
    """
    graph = copied(captured.graph)
    working = with_graph(captured, graph)
    seen = escaping(working)
    first: dict[Any, Node] = {}
    for node in list(graph.graph.nodes):
        if node.op not in {"call_function", "get_attr"} or is_random(node.target) or is_impure(node):
            continue
        key = (node.op, node.target, _frozen(node.args), _frozen(node.kwargs))
        other = first.setdefault(key, node)
        if other is not node and not (other in seen and node in seen):
            if node in seen:
                seen.add(other)
            swap(node, other)
    return with_graph(working, graph)


def _frozen(value: Any) -> Any:
    """A hashable key that tells 1 from 1.0 and True, and nan from nothing."""
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, dict):
        return tuple((name, _frozen(item)) for name, item in sorted(value.items()))
    if isinstance(value, slice):
        return ("slice", _frozen(value.start), _frozen(value.stop), _frozen(value.step))
    if isinstance(value, (Node, torch.dtype, torch.device)):
        return value
    return (type(value), repr(value))
