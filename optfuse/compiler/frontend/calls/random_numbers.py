"""Numbers that a program draws with Python's ``random``: Dynamo hands them over in another dtype than it traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.source import RandomValueSource
from torch.fx import GraphModule, Node


def with_random_numbers(graph: GraphModule, run: Callable[..., Any]) -> Callable[..., Any]:
    """``run``, a function of a graph's arguments, given the numbers drawn by ``random`` in the dtype that was traced.

    ``random.uniform(0, 1)`` in a model is an argument: float32 where Dynamo traces it, float64 where Dynamo calls the
    graph. The trace holds: every dtype of the graph follows from it. So float64 tensors meet a number of 24 bits.
    """
    traced = drawn_numbers(graph)
    if not traced:
        return run

    def call(*arguments: Any) -> Any:
        given = [value.to(traced[k]) if k in traced else value for k, value in enumerate(arguments)]
        return run(*given)

    return call


def drawn_numbers(graph: GraphModule) -> dict[int, torch.dtype]:
    """The arguments of a graph that are numbers drawn by ``random``, each with the dtype that was traced."""
    placeholders = graph.graph.find_nodes(op="placeholder")
    return {k: node.meta["example_value"].dtype for k, node in enumerate(placeholders) if _is_drawn(node)}


def _is_drawn(node: Node) -> bool:
    source = getattr(node.meta.get("grapharg"), "source", None)
    return isinstance(source, RandomValueSource) and isinstance(node.meta.get("example_value"), torch.Tensor)
