"""Graphs with sizes that depend on the values of tensors: cut where such a size is found, compiled between the cuts.

``nonzero``, ``x[x > 0]``, ``item()``, tensors given for numbers (``alpha=x.max()``) and the like run as they were
traced. What stands between them is compiled for the sizes that come: what torch.compile captures then costs only the
nodes that find a size, not the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import getitem
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.passes.split_module import split_module

from optfuse.compiler.frontend.by_size import CompileSize, at_any_size
from optfuse.compiler.frontend.torch_bridge import tree_leaves
from optfuse.compiler.frontend.torch_sizes import is_read_as_number, is_symbolic, unbacked_symbols


def finds_size(node: Node) -> bool:
    """Whether a node of torch.compile's graph yields a size or number that no argument tells."""
    if node.op not in {"call_function", "call_method", "call_module"}:
        return False
    known = [source.meta.get("example_value") for source in node.all_input_nodes]
    found = unbacked_symbols(node.meta.get("example_value")) - unbacked_symbols(known)
    return bool(node.meta.get("unbacked_bindings") or found) or _takes_element(node)


def _takes_element(node: Node) -> bool:
    """Whether a keyword is given a tensor, read as a number that no node yields: ``torch.add(x, y, alpha=z.max())``."""
    given = [value for value in node.kwargs.values() if isinstance(value, Node)]
    read = (source for source in given if is_read_as_number(source.meta.get("example_value")))
    return any(not any(is_symbolic(user.meta.get("example_value")) for user in source.users) for source in read)


def finds_sizes(graph: GraphModule) -> bool:
    """Whether a graph has nodes that find a size."""
    return any(finds_size(node) for node in graph.graph.nodes)


def in_parts(
    graph: GraphModule,
    name: str,
    compile_size: CompileSize,
    leave: Callable[[str, str], None] | None,
) -> Callable[..., Any]:
    """A graph with nodes that find a size, as a function: these nodes run as traced, the parts between are compiled.

    Parts are called ``compiled0.part1``, ``compiled0.part3``. A part is compiled for sizes when they come a second
    time, since those that depend on data seldom come again.
    """
    parts = _part_numbers(graph)
    finding = [node for node in graph.graph.nodes if finds_size(node)]
    fakes = {node: node.meta.pop("example_value") for node in graph.graph.nodes if "example_value" in node.meta}
    for node, value in fakes.items():  # under another name, or the cut asks for a node that yields each symbol
        node.meta["fake"] = value
    try:
        cut = split_module(graph, graph, lambda node: parts[node], keep_original_order=True)
    finally:
        for node, value in fakes.items():
            node.meta["example_value"] = value
            del node.meta["fake"]
    for number in sorted(set(parts.values())):
        part = getattr(cut, f"submod_{number}")
        for node in part.graph.nodes:
            if "fake" in node.meta:
                node.meta = {**node.meta, "example_value": node.meta["fake"]}
        found = [node.name for node in finding if parts[node] == number]
        if found and leave is not None:
            leave(f"{name}.part{number}", f"{', '.join(found)}: a size or value that only its run tells")
        if number % 2 == 1:
            setattr(cut, f"submod_{number}", _Part(part, f"{name}.part{number}", compile_size, leave))
    return cut


class _Part(torch.nn.Module):
    """A compiled part in the place of the traced one."""

    def __init__(
        self, part: GraphModule, name: str, compile_size: CompileSize, leave: Callable[[str, str], None] | None
    ) -> None:
        super().__init__()
        output = part.graph.output_node()
        self.single = not isinstance(output.args[0], tuple)
        if self.single:
            output.args = ((output.args[0],),)
            part.recompile()
        inputs = [node.meta.get("example_value") for node in part.graph.find_nodes(op="placeholder")]
        self.run = at_any_size(part, name, inputs, compile_size, leave, at_once=False)

    def forward(self, *arguments: Any) -> Any:
        results = self.run(*arguments)
        return results[0] if self.single else results


def _part_numbers(graph: GraphModule) -> Mapping[Node, int]:
    """A part per node, in program order: even ones run as traced, odd ones are compiled."""
    numbers: dict[Node, int] = {}
    current = 0
    for node in graph.graph.nodes:
        if node.op in {"placeholder", "get_attr", "output"}:
            continue
        source = node.args[0] if node.target is getitem else None
        if isinstance(source, Node) and isinstance(source.meta.get("example_value"), (tuple, list)):
            numbers[node] = numbers.get(source, current)  # what goes from part to part is no tuple
            continue
        if finds_size(node):
            current += current % 2
        elif _yields_tensors(node):
            current += 1 - current % 2
        numbers[node] = current
    return numbers


def _yields_tensors(node: Node) -> bool:
    return any(isinstance(value, torch.Tensor) for value in tree_leaves(node.meta.get("example_value")))
