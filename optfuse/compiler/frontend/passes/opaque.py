"""Wrap nodes that a plan cannot hold, such as those with subgraphs, as library calls: it costs itself alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter, getitem
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate

from optfuse.compiler.frontend.calls.flat import replace_by_value
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.graph.rewrite import copied, with_graph
from optfuse.compiler.frontend.torch_internals.torch_bridge import (
    HigherOrderOperator,
    OpOverload,
    compiled_by_inductor,
    is_mutating,
    is_random,
    outside_of_modes,
    tree_leaves,
)
from optfuse.compiler.frontend.torch_internals.torch_fakes import fake_result_afresh
from optfuse.compiler.frontend.torch_internals.torch_sizes import has_unbacked_size, is_symbolic
from optfuse.compiler.ops.opaque_operators import SCAN, AssociativeScan, Body, opaque_operator

#: What the arguments of a library call may be, beside tensors and lists.
_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))


def isolate_opaque(captured: Captured) -> Captured:
    """The same graph with an operator of its own for each node with subgraphs or objects among its arguments.

    Before: ``cond(p, true_graph, false_graph, [x, y])``. After: ``optfuse_opaque.cond_0(p, x, y)``. Nodes whose results
    are no tensors of known sizes stay as they are.
    """
    if not any(_needs_torch(node) for node in captured.graph.graph.nodes):
        return captured
    graph = copied(captured.graph)
    for node in list(graph.graph.nodes):
        if _needs_torch(node):
            _isolate(graph, node)
    return with_graph(captured, graph)


#: Operators that torch runs fast only as Inductor's templates: eager execution writes all scores to memory.
_TEMPLATES = frozenset({"flex_attention", "flex_attention_backward"})


@dataclass(frozen=True, slots=True)
class _Slot:
    """The place of the k-th tensor, or of the k-th size that changes, among a node's arguments."""

    k: int
    is_size: bool = False


def _needs_torch(node: Node) -> bool:
    if node.op != "call_function":
        return False
    if isinstance(node.target, HigherOrderOperator):
        return True
    odd: list[object] = []
    map_aggregate((node.args, node.kwargs), lambda x: odd.append(x) if _is_odd(x) else None)
    return bool(odd) and isinstance(node.target, OpOverload) and not is_mutating(node.target, node.kwargs)


def _is_odd(argument: object) -> bool:
    symbolic = isinstance(argument, torch.SymInt | torch.SymFloat | torch.SymBool)
    return not (symbolic or isinstance(argument, (Node, *_PLAIN)))


def _isolate(graph: GraphModule, node: Node) -> None:
    """Put an operator of its own in the place of a node, if its results allow."""
    value = node.meta.get("val")
    if value is None:  # torch does not say what its wrappers of random operators return
        value = fake_result_afresh(node)
    leaves = tree_leaves(value)
    results = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    plain = all(_is_dense(leaf) or isinstance(leaf, (int, float, type(None))) for leaf in leaves)
    if not (results and plain and _is_read_by_item(node, value)):
        return
    read = list(_read(node, value))
    kept = [k for k, is_read in enumerate(read) if is_read]
    results = [results[k] for k in kept]
    if not results or not _tells_its_sizes(graph, node):
        return
    body, tensors, sizes = _body_of(graph, node, value, kept)
    with outside_of_modes():
        target = opaque_operator(
            _stem(node), body, len(tensors), results, numbers=len(sizes), random=_draws(graph, node)
        )
    with graph.graph.inserting_before(node):
        call = graph.graph.call_function(target, (*tensors, *sizes))
    call.meta = {**node.meta, "val": tuple(results) if len(results) > 1 else results[0]}
    scan = _scan_of(graph, node, tensors, kept)
    if scan is not None:
        call.meta[SCAN] = scan
    numbers = [kept.index(k) if is_read else -1 for k, is_read in enumerate(read)]
    _hand_out(node, value, call, iter(numbers), single=len(results) == 1)


def _tells_its_sizes(graph: GraphModule, node: Node) -> bool:
    """Whether all symbolic numbers of a node are sizes among its arguments, and none is inside of its subgraphs.

    Inductor's code of a template is for one size.
    """
    given = tree_leaves((node.args, node.kwargs))
    if any(isinstance(x, torch.SymFloat | torch.SymBool) for x in given):
        return False
    if _is_template(node) and any(map(is_symbolic, (*given, *_sizes_of(node)))):
        return False
    return not any(
        is_symbolic(x)
        for module in _subgraphs(graph, node)
        for inner in module.graph.nodes
        for x in tree_leaves((inner.args, inner.kwargs))
    )


def _is_template(node: Node) -> bool:
    """Whether Inductor runs a node, which is on a GPU."""
    return str(node.target) in _TEMPLATES and any(x.device.type == "cuda" for x in _tensors_given(node))


def _sizes_of(node: Node) -> list[Any]:
    """The sizes of the tensors among a node's arguments."""
    return [n for x in _tensors_given(node) for n in x.shape]


def _tensors_given(node: Node) -> list[torch.Tensor]:
    values = [argument.meta.get("val") for argument in node.all_input_nodes]
    return [x for x in values if isinstance(x, torch.Tensor)]


def _subgraphs(graph: GraphModule, node: Node) -> list[GraphModule]:
    """The graphs among the arguments of a node."""
    inner = [attrgetter(str(argument.target))(graph) for argument in node.all_input_nodes if argument.op == "get_attr"]
    return [module for module in inner if isinstance(module, GraphModule)]


def _stem(node: Node) -> str:
    """The stem of an operator's name: the node's, and the operator inside of a wrapper of random draws."""
    inside = next((arg for arg in node.args if isinstance(arg, OpOverload)), None)
    return node.name if inside is None else f"{node.name}_{inside.overloadpacket.__name__}"


def _is_read_by_item(node: Node, value: object) -> bool:
    """Whether each user of a tuple takes one item of it, and so on for items that are tuples."""
    if not isinstance(value, tuple | list):
        return True
    return all(
        user.target is getitem and isinstance(user.args[1], int) and _is_read_by_item(user, value[user.args[1]])
        for user in node.users
    )


def _read(node: Node | None, value: object) -> Iterator[bool]:
    """For each tensor among what a node returns, in order, whether it is read."""
    if isinstance(value, torch.Tensor):
        yield node is not None and bool(node.users)
    elif isinstance(value, tuple | list):
        for k, item in enumerate(value):
            yield from _read(next((user for user in node.users if user.args[1] == k), None) if node else None, item)


def _hand_out(node: Node, value: object, call: Node, numbers: Iterator[int], *, single: bool) -> None:
    """Let the users of a node, or of its items, take the results of ``call``, whose tensors are counted in order."""
    users, graph = list(node.users), node.graph
    if isinstance(value, tuple | list):
        for k, item in enumerate(value):  # an item that nothing reads takes its numbers along
            readers = [user for user in users if user.args[1] == k]
            taken = list(islice(numbers, sum(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(item))))
            for reader in readers:
                _hand_out(reader, item, call, iter(taken), single=single)
    elif isinstance(value, torch.Tensor):
        number = next(numbers)
        if single:
            node.replace_all_uses_with(call)
        else:
            with graph.inserting_before(node):
                taken_out = graph.call_function(getitem, (call, number))
            taken_out.meta = {**node.meta, "val": value}
            node.replace_all_uses_with(taken_out)
    else:
        replace_by_value(node, value)
    graph.erase_node(node)


def _body_of(
    graph: GraphModule, node: Node, value: object, kept: Sequence[int]
) -> tuple[Body, list[Node], list[torch.SymInt]]:
    """The function that runs a node, of the tensors and the sizes that it is given, and those tensors and sizes.

    ``value`` is what the node returns; of the tensors in it the function returns those that ``kept`` counts.
    """
    tensors: list[Node] = []
    sizes: list[torch.SymInt] = []

    def slot(argument: Any) -> Any:
        if isinstance(argument, torch.SymInt):
            sizes.append(argument)
            return _Slot(len(sizes) - 1, is_size=True)
        if not isinstance(argument, Node):
            return argument
        if argument.op == "get_attr" and not isinstance(argument.meta.get("val"), torch.Tensor):
            return attrgetter(str(argument.target))(graph)
        if argument not in tensors:
            tensors.append(argument)
        return _Slot(tensors.index(argument))

    args, kwargs = map_aggregate((tuple(node.args), dict(node.kwargs)), slot)
    if _is_template(node):
        return _by_inductor(graph, node, value, kept, tensors), tensors, sizes
    run: Any = node.target

    def body(given: Sequence[torch.Tensor], numbers: Sequence[int]) -> list[torch.Tensor]:
        def filled(argument: Any) -> Any:
            return (numbers if argument.is_size else given)[argument.k] if isinstance(argument, _Slot) else argument

        with outside_of_modes():
            returned = run(*map_aggregate(args, filled), **map_aggregate(kwargs, filled))
        found = [x for x in tree_leaves(returned) if isinstance(x, torch.Tensor)]
        return [found[k] for k in kept]

    return body, tensors, sizes


def _scan_of(graph: GraphModule, node: Node, tensors: Sequence[Node], kept: Sequence[int]) -> AssociativeScan | None:
    """What a node scans, if it is an associative scan of ``tensors`` that uses no others."""
    if str(node.target) != "associative_scan":
        return None
    combine, operands, *more = (*node.args, *node.kwargs.values())
    if not isinstance(combine, Node) or not isinstance(operands, list | tuple) or any(more):
        return None
    module = attrgetter(str(combine.target))(graph)
    scanned = tuple(tensors.index(x) for x in operands if isinstance(x, Node))
    return AssociativeScan(module, scanned, tuple(kept)) if isinstance(module, GraphModule) else None


def _by_inductor(graph: GraphModule, node: Node, value: object, kept: Sequence[int], tensors: Sequence[Node]) -> Body:
    """The function that runs a node alone as Inductor compiles it; parameters as for ``_body_of``."""
    alone = Graph()
    values = {tensor: alone.placeholder(tensor.name) for tensor in tensors}
    attributes = [argument for argument in node.all_input_nodes if argument not in values]
    values |= {argument: alone.get_attr(str(argument.target)) for argument in attributes}
    found = list(_tensors_of(alone.node_copy(node, values.__getitem__), value))
    alone.output(tuple(found[k] for k in kept))
    alone.eliminate_dead_code()
    run = compiled_by_inductor(GraphModule(graph, alone))

    def body(given: Sequence[torch.Tensor], _: Sequence[int]) -> list[torch.Tensor]:
        with outside_of_modes():
            return list(run(*given))

    return body


def _tensors_of(node: Node, value: object) -> Iterator[Node]:
    """Nodes for the tensors among what a node returns, in order."""
    if isinstance(value, torch.Tensor):
        yield node
    elif isinstance(value, tuple | list):
        for k, item in enumerate(value):
            yield from _tensors_of(node.graph.call_function(getitem, (node, k)), item)


def _draws(graph: GraphModule, node: Node) -> bool:
    """Whether a node may draw random numbers, in one of its subgraphs too."""
    if "rng" in str(node.target):
        return True
    return is_random(node.target) or any(
        is_random(each.target) or "rng" in str(each.target)
        for module in _subgraphs(graph, node)
        for each in module.graph.nodes
    )


def _is_dense(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and not has_unbacked_size(value)
