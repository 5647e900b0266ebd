"""Build small captured graphs by tracing a function over fake tensors, without decomposing anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from optfuse.compiler.frontend import Captured, InputSource


def traced(
    function: Callable[..., Any],
    *inputs: torch.Tensor,
    constants: Mapping[str, torch.Tensor] | None = None,
    **fields: Any,
) -> Captured:
    """``function`` (of ``inputs``, returning a tuple) as a Captured; it gets ``constants`` by keyword."""
    names = list(constants or {})

    def flat(*args: torch.Tensor) -> Any:
        return function(*args[: len(inputs)], **dict(zip(names, args[len(inputs) :], strict=True)))

    graph = make_fx(flat, tracing_mode="fake")(*inputs, *(constants or {}).values())
    placeholders = graph.graph.find_nodes(op="placeholder")
    for name, node in zip(names, placeholders[len(inputs) :], strict=True):
        graph.register_buffer(name, (constants or {})[name])
        with graph.graph.inserting_before(node):
            attribute = graph.graph.get_attr(name)
        attribute.meta = dict(node.meta)
        node.replace_all_uses_with(attribute)
        graph.graph.erase_node(node)
    graph.recompile()
    sources = tuple(InputSource("user", f"args[{k}]", k) for k in range(len(inputs)))
    return Captured("traced", graph, sources, dict(constants or {}), **fields)


def operators(captured: Captured) -> list[str]:
    """The operators in order, without their namespace."""
    return [str(node.target).removeprefix("aten.") for node in captured.graph.graph.nodes if node.op == "call_function"]


def run(captured: Captured, *inputs: torch.Tensor) -> Any:
    """Interpret the graph."""
    return torch.fx.Interpreter(captured.graph).run(*inputs)
