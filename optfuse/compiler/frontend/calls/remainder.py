"""The end of a graph that no plan can hold: torch runs it eagerly after the scheduled program.

Sparse tensors (the gradients of embeddings with ``sparse=True``), new values of arguments of which several elements lie
in one place, and scatters into windows that overlap themselves. All that depends on them comes with them; the rest of
the graph is scheduled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from optfuse.compiler.frontend.torch_internals.torch_bridge import HigherOrderOperator, graph_module, tree_leaves
from optfuse.compiler.frontend.torch_internals.torch_sizes import is_symbolic

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Remainder:
    """The nodes that run after a program.

    Attributes:
        graph: A function of some of torch's arguments and some of the program's results to results of torch's.
        arguments, results: The positions of those arguments, and of those results, which follow torch's own.
        positions: Where in torch's results its own results belong.
        names: The nodes, for a user who asks what is not scheduled.
    """

    graph: GraphModule
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    positions: tuple[int, ...]
    names: tuple[str, ...]

    def complete(self, arguments: Sequence[Any], outputs: list[Any]) -> None:
        """Run the nodes, put their results among ``outputs``, and drop the outputs that were only their operands."""
        found = self.graph(*arguments, *(outputs[k] for k in self.results))
        del outputs[len(outputs) - len(self.results) :]
        for position, value in zip(self.positions, found, strict=True):
            outputs[position] = value

    def is_of_process(self) -> bool:
        """Whether another process may not know a node: its subgraph or kernel may be a number of this one."""
        return any(isinstance(x.target, HigherOrderOperator) for x in self.graph.graph.nodes)


def take_remainder(graph: GraphModule) -> Remainder | None:
    """Take the nodes that no plan can hold, and all that depends on them, out of a graph, in place.

    What they read is returned behind the graph's own results, and in place of theirs None. A graph in which they read
    numbers that it has computed, or have effects that others wait for, is left as it is.
    """
    late = _late(graph)
    if not late:
        return None
    output = graph.graph.output_node()
    flat = list(output.args[0])
    placeholders = graph.graph.find_nodes(op="placeholder")
    read = list(dict.fromkeys(x for node in late for x in node.all_input_nodes if x not in late))
    read += [x for x in flat if isinstance(x, Node) and not _is_dense(x) and x not in late and x not in read]
    given = [x for x in read if x.op == "placeholder"]
    made = [x for x in read if x.op == "call_function"]
    if any(not isinstance(x.meta.get("val"), torch.Tensor) for x in made):
        return None
    positions = [k for k, x in enumerate(flat) if isinstance(x, Node) and (x in late or not _is_dense(x))]
    alone = Graph()
    values: dict[Node, Node] = {x: alone.placeholder(x.name) for x in (*given, *made)}
    for node in graph.graph.nodes:
        if node in late or (node.op == "get_attr" and node in read):
            values[node] = alone.node_copy(node, values.__getitem__)
    alone.output(tuple(values[flat[k]] for k in positions))
    made_positions = tuple(range(len(flat), len(flat) + len(made)))
    output.args = (tuple([None if k in positions else x for k, x in enumerate(flat)] + made),)
    for node in reversed(late):
        graph.graph.erase_node(node)
    return Remainder(
        graph_module(graph, alone),
        tuple(placeholders.index(x) for x in given),
        made_positions,
        tuple(positions),
        tuple(node.name for node in late),
    )


def _late(graph: GraphModule) -> list[Node]:
    """The nodes that no plan can hold and those that depend on them, in order."""
    started, late = _written_by_place(graph), dict[Node, None]()
    for node in graph.graph.nodes:
        starts = node in started or _touches_sparse(node)
        if node.op == "call_function" and (starts or any(x in late for x in node.all_input_nodes)):
            late[node] = None
    read = {x for node in late for x in node.all_input_nodes if x.op == "placeholder"}
    copies = graph.graph.find_nodes(op="call_function", target=aten.copy_.default) if late else []
    for node in copies:  # an argument that they read is written after them
        if node.args[0] in read and node not in late:
            late[node] = None
    return [node for node in graph.graph.nodes if node in late]


def _touches_sparse(node: Node) -> bool:
    return not _is_dense(node) or any(x.op == "placeholder" and not _is_dense(x) for x in node.all_input_nodes)


def _written_by_place(graph: GraphModule) -> set[Node]:
    """Writes where several elements lie in one place, and what leads to them from such windows.

    Where memory is written through one window, others see it: eager operators keep the windows as they are.
    """
    found: set[Node] = set()
    for node in graph.graph.nodes:
        target = node.args[0] if node.target in (aten.copy_.default, aten.as_strided_scatter.default) else None
        onto = node.target is aten.as_strided_scatter.default or (isinstance(target, Node) and _in_one_place(target))
        if target is None or not onto or (node.target is aten.copy_.default and target.op != "placeholder"):
            continue
        before, stack = set[Node](), [node]
        while stack:
            before.update(new := [x for x in stack.pop().all_input_nodes if x not in before])
            stack += new
        leading: set[Node] = set()
        for x in graph.graph.nodes:  # in order: what depends on such a window comes after it
            if x in before and (_in_one_place(x) or any(y in leading for y in x.all_input_nodes)):
                leading.add(x)
        found |= {node, *leading}
    return found


def _in_one_place(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor) and _is_dense(node) and _overlaps(node.meta["val"])


def _overlaps(value: torch.Tensor) -> bool:
    """Whether several elements may lie in one place; of a size that changes that is not said."""
    reach = 1
    if any(map(is_symbolic, (*value.shape, *value.stride()))):
        return False
    for step, size in sorted((step, n) for n, step in zip(value.shape, value.stride(), strict=True) if n > 1):
        if step < reach:
            return True
        reach += step * (size - 1)
    return False


def _is_dense(node: Node) -> bool:
    leaves = tree_leaves(node.meta.get("val"))
    return all(x.layout is torch.strided for x in leaves if isinstance(x, torch.Tensor))


def is_sparse_argument(node: Node) -> bool:
    """Whether a placeholder is a tensor that no plan can hold."""
    return not _is_dense(node)
