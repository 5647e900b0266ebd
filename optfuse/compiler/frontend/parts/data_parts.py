"""Graphs with nodes that read the values of tensors: cut at these nodes, compiled between the cuts.

``nonzero``, ``x[x > 0]``, ``item()``, tensors given for numbers (``alpha=x.max()``) and the like find a size that no
argument tells; a custom operator may have a backward that no trace can follow. They run as they were traced. What
stands between them is compiled for the sizes that come: such a node then costs itself, not the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import getitem
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node
from torch.fx.passes.split_module import split_module

from optfuse.compiler.frontend.parts.custom_gradients import gradient_reads_values
from optfuse.compiler.frontend.parts.host_bound import HostBound
from optfuse.compiler.frontend.sizes.by_size import CompileRange, CompileSize, at_any_size
from optfuse.compiler.frontend.sizes.size_reader import Place, SizeReader, size_reader
from optfuse.compiler.frontend.torch_internals.torch_bridge import records_gradients, tree_leaves
from optfuse.compiler.frontend.torch_internals.torch_sizes import is_read_as_number, is_symbolic, unbacked_symbols


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
    known = [(source, source.meta.get("example_value")) for source in given]
    read = [node for node, value in known if is_read_as_number(value) and unbacked_symbols(value.item_memo)]
    return any(not any(is_symbolic(user.meta.get("example_value")) for user in source.users) for source in read)


def cut_nodes(graph: GraphModule) -> dict[Node, str]:
    """The nodes of torch.compile's graph that run as traced, each with the reason."""
    cuts: dict[Node, str] = {}
    learns = records_gradients(graph)
    for node in graph.graph.nodes:
        if finds_size(node):
            cuts[node] = "a size or value that only its run tells"
        elif learns and gradient_reads_values(node):
            cuts[node] = "a backward that reads the values of tensors"
    return cuts


def in_parts(
    graph: GraphModule,
    name: str,
    cuts: Mapping[Node, str],
    compile_size: CompileSize,
    leave: Callable[[str, str], None] | None,
    compile_range: CompileRange | None,
) -> Callable[..., Any]:
    """A graph as a function: the nodes of ``cuts`` run as traced, the parts between are compiled.

    Parts are called ``compiled0.part1``, ``compiled0.part3``, and compiled for ranges of sizes as whole graphs are.
    Where a part has no range, and sizes that depend on data, each is compiled when it comes a second time: few do.
    """
    parts = _part_numbers(graph, cuts)
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
        found = [node for node in cuts if parts[node] == number]
        for reason in dict.fromkeys(cuts[node] for node in found):
            if leave is not None:
                leave(f"{name}.part{number}", f"{', '.join(n.name for n in found if cuts[n] == reason)}: {reason}")
        if number % 2 == 1:
            setattr(cut, f"submod_{number}", _Part(part, f"{name}.part{number}", compile_size, leave, compile_range))
    return cut


class _Part(torch.nn.Module):
    """A compiled part in the place of the traced one."""

    def __init__(
        self,
        part: GraphModule,
        name: str,
        compile_size: CompileSize,
        leave: Callable[[str, str], None] | None,
        compile_range: CompileRange | None,
    ) -> None:
        super().__init__()
        output = part.graph.output_node()
        self.single = not isinstance(output.args[0], tuple)
        if self.single:
            output.args = ((output.args[0],),)
            part.recompile()
        inputs = [node.meta.get("example_value") for node in part.graph.find_nodes(op="placeholder")]
        self.reader = _add_sizes(part, inputs)
        depends = bool(unbacked_symbols(inputs))
        self.traced = part
        self.host_bound = HostBound(part, self.reader.symbols) if depends and self.reader is not None else None
        self.run = at_any_size(part, name, inputs, compile_size, leave, not depends, compile_range)
        self.leave = None if leave is None else partial(leave, name)

    def forward(self, *arguments: Any) -> Any:
        sizes = () if self.reader is None else self.reader.read(arguments)
        run = self.run
        if self.host_bound is not None and self.host_bound.holds(sizes, arguments):
            run = self.traced
            if self.leave is not None:
                self.leave("the host takes longer for it than the GPU, at sizes that depend on data")
                self.leave = None
        results = run(*arguments, *sizes)
        return results[0] if self.single else results


def _add_sizes(part: GraphModule, inputs: list[Any]) -> SizeReader | None:
    """Make arguments of the symbols in a part's tensors, as torch.compile does it for a whole graph.

    What a part returns may be windows of one memory, which are made of such numbers. Returns where a call reads them,
    and appends the traced ones to ``inputs``; None if there are none.
    """
    known = size_reader(part, inputs)
    places = () if known is None else zip(known.symbols, known.places, strict=True)
    read = [(symbol, where) for symbol, where in places if _is_of_tensor(symbol, where[1])]
    if known is None or not read:
        return None
    reader = SizeReader(tuple(symbol for symbol, _ in read), tuple(where for _, where in read), known.nested)
    for symbol, number in zip(reader.symbols, reader.read(inputs), strict=True):
        with part.graph.inserting_before(next(n for n in part.graph.nodes if n.op != "placeholder")):
            node = part.graph.placeholder(str(symbol))
        node.meta["example_value"] = number
        inputs.append(number)
    part.recompile()
    return reader


def _is_of_tensor(symbol: sympy.Basic, place: Place) -> bool:
    """Whether a symbol by itself is a size, a stride or the offset of a tensor."""
    return isinstance(symbol, sympy.Symbol) and place is not None and place[0] != "item"


def _part_numbers(graph: GraphModule, cuts: Mapping[Node, str]) -> Mapping[Node, int]:
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
        if node in cuts:
            current += current % 2
        elif _yields_tensors(node):
            current += 1 - current % 2
        numbers[node] = current
    return numbers


def _yields_tensors(node: Node) -> bool:
    return any(isinstance(value, torch.Tensor) for value in tree_leaves(node.meta.get("example_value")))
