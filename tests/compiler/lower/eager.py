"""Trace a function, lower it, run the loop graph by the interpreter, and compare with eager."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from optfuse.compiler.ir.interpreter import interpret
from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph, LoopNest
from optfuse.compiler.ir.verify_graph import verify
from optfuse.compiler.lower import lower


def lowered(function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[LoopGraph, dict[str, torch.Tensor]]:
    """The verified loop graph of ``function``, and its constants."""
    traced = make_fx(lambda *args: function(*args), tracing_mode="fake")(*inputs)
    named = {node.target for node in traced.graph.nodes if node.op == "get_attr"}
    constants = {name: getattr(traced, name) for name in sorted(named)}
    graph = lower(traced, name="test", constants=constants)
    verify(graph)
    return graph, constants


def check(
    function: Callable[..., Any], *inputs: torch.Tensor, library: Collection[str] = (), **tolerance: float
) -> LoopGraph:
    """Assert that the loop graph gives what ``function`` gives, layouts included, calling exactly ``library``."""
    graph, constants = lowered(function, *inputs)
    assert {op.target for op in graph.ops if isinstance(op, LibraryCall)} == set(library)
    expected = pytree.tree_leaves(function(*inputs))
    for actual, wanted in zip(interpret(graph, list(inputs), constants), expected, strict=True):
        torch.testing.assert_close(actual, wanted, equal_nan=True, **tolerance)
        if isinstance(wanted, torch.Tensor) and wanted.numel():
            layout = [(n, s) for n, s in zip(wanted.shape, wanted.stride(), strict=True) if n > 1]
            assert [(n, s) for n, s in zip(actual.shape, actual.stride(), strict=True) if n > 1] == layout
    return graph


def nests(graph: LoopGraph) -> list[LoopNest]:
    """The nests of a graph."""
    return [op for op in graph.ops if isinstance(op, LoopNest)]
