"""Reads the decisions of Inductor's scheduler: kernels and library calls in order, and the nodes that each computes.

Inductor inlines a graph node into its consumers, or gives it a buffer of its own, or both. A buffer's ``origins`` are
all nodes that its lowering involved, including some that it loads. A search from the buffer's own node towards its
inputs, which stops at values that are loaded, keeps the computed ones only. A buffer computed from indices alone (a
mask) is recomputed by each kernel that loads it: it is not a kernel, and its origins are added to theirs.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from optfuse.inductor.graph_record import origin_of


def read_schedule(scheduler: Any) -> dict[str, Any]:
    """Return the schedule as JSON data; see ``groups.Groups``."""
    from torch._inductor.virtualized import V

    nodes = [node for top in scheduler.nodes for node in _kernels_of(top)]
    parts = [part for node in nodes for part in node.get_nodes()]
    lowered: Any = V.graph.module  # an interpreter may hold any module; Inductor's holds the graph that it lowers
    facts = _Facts.of(parts, V.graph.buffers, lowered.graph)
    kernels = [_kernel(node, facts) for node in nodes]
    kept = set[str]().union(*map(names_of, lowered.graph.nodes))
    return {"kernels": kernels, "kept": sorted(kept)}


def read_parts(nodes: Iterable[Any]) -> dict[str, dict[str, Any]]:
    """Return what each node with loops computes, as JSON data of ``groups.Part`` by the node's name."""
    from torch._inductor.virtualized import V

    parts = [part for node in nodes for part in node.get_nodes() if getattr(part, "node", None) is not None]
    lowered: Any = V.graph.module
    facts = _Facts.of(parts, V.graph.buffers, lowered.graph)
    return {part.get_name(): _part(part, facts) for part in parts if _has_loops(part)}


def _has_loops(part: Any) -> bool:
    from torch._inductor.scheduler import SchedulerNode

    return isinstance(part, SchedulerNode) and not part.is_template()


@dataclass(frozen=True, slots=True)
class _Facts:
    """Which graph nodes buffers hold.

    Attributes:
        values: By buffer, the graph nodes whose value it holds.
        external: Nodes that a library call computes.
        inlined: By node whose buffer is recomputed where it is loaded, that buffer's origins.
    """

    values: dict[str, frozenset[fx.Node]]
    external: frozenset[fx.Node]
    inlined: dict[fx.Node, frozenset[fx.Node]]

    @classmethod
    def of(cls, parts: Sequence[Any], buffers: Sequence[Any], graph: fx.Graph) -> _Facts:
        values = {str(node.target): frozenset({node}) for node in graph.find_nodes(op="placeholder")}
        values |= {buffer.get_name(): frozenset(_own(buffer)) for buffer in buffers}
        external = {node for part in parts if part.is_extern() for node in _own(part.node)}
        scheduled = {part.node.get_name() for part in parts if getattr(part, "node", None) is not None}
        inlined = {
            node: frozenset(_origins(buffer))
            for buffer in buffers
            if buffer.get_name() not in scheduled and _reads_nothing(buffer)
            for node in _own(buffer)
        }
        return cls(values, frozenset(external), inlined)

    def origins(self, operation: Any) -> set[fx.Node]:
        """The origins of an operation, with those of the buffers that it recomputes instead of loading."""
        found = _origins(operation)
        fresh = True
        while fresh:
            fresh = {n for n, behind in self.inlined.items() if not found.isdisjoint(_users(n)) and not behind <= found}
            found = found.union(*(self.inlined[node] for node in fresh))
        return found


def _kernels_of(node: Any) -> Iterator[Any]:
    """The nodes that become launches: without nodes that have no code, and with the members of groups one by one."""
    from torch._inductor.scheduler import GroupedSchedulerNode, NopKernelSchedulerNode

    if isinstance(node, GroupedSchedulerNode):
        for inner in node.snodes:
            yield from _kernels_of(inner)
    elif not isinstance(node, NopKernelSchedulerNode) and not _is_result(node):
        yield node


def _is_result(node: Any) -> bool:
    """Whether a node is one of several results of a library call that is a node of its own."""
    from torch._inductor.ir import MultiOutput

    return isinstance(getattr(node, "node", None), MultiOutput)


def _kernel(node: Any, facts: _Facts) -> dict[str, Any]:
    parts = [part for part in node.get_nodes() if getattr(part, "node", None) is not None]
    return {"name": node.get_name(), "kind": _kind(node), "parts": [_part(part, facts) for part in parts]}


def _kind(node: Any) -> str:
    if node.is_extern():
        return "library"
    kinds = {"ForeachKernelSchedulerNode": "foreach", "FusedMixOrderReductions": "mix_order"}
    return kinds.get(type(node).__name__, "template" if node.is_template() else "loops")


def _part(part: Any, facts: _Facts) -> dict[str, Any]:
    own = _own(part.node)
    if part.is_extern() or part.is_template():
        computed = own
    else:
        read = frozenset(value for dep in part.read_writes.reads for value in facts.values.get(dep.name, ()))
        computed = _computed(part.node, read, facts)
    whole = set[str]().union(*(names_of(node) for node in computed if is_last(node)))
    return {
        "name": part.get_name(),
        "whole": sorted(whole),
        "partly": sorted(set[str]().union(*map(names_of, computed)) - whole),
        "makes": sorted(set[str]().union(*map(names_of, own))),
        "calls": _callee(part.node) if part.is_extern() else "",
        "reduces": bool(part.is_reduction()),
    }


def names_of(node: fx.Node) -> set[str]:
    """The names of our nodes that a node comes from; for a call added by a rewrite, those of its results."""
    name = origin_of(node)
    if name or node.op != "call_function":
        return {name} - {""}
    return {origin_of(user) for user in node.users if user.target is operator.getitem} - {""}


def _own(operation: Any) -> set[fx.Node]:
    """The nodes whose value an operation computes: the one that Inductor names, else its last origins."""
    origins = _origins(operation)
    named = operation.get_origin_node()
    if isinstance(named, fx.Node) and (named in origins or not origins):
        return {named}
    return {node for node in origins if origins.isdisjoint(_users(node))}


def _computed(operation: Any, read: frozenset[fx.Node], facts: _Facts) -> set[fx.Node]:
    """The nodes that an operation computes from the values that it reads.

    The second stage of a reduction reads the results of the first, which belong to the same node, so it computes that
    node only. A copy for a library call copies one of the call's arguments: the one whose inputs are all read.
    """
    origins = facts.origins(operation)
    own = _own(operation)
    found = own - facts.external
    for node in own - read:
        for source in node.all_input_nodes:
            reached, inputs = _behind(source, origins, read)
            if node not in facts.external or inputs <= read:
                found |= reached
    return found


def _behind(node: fx.Node, origins: set[fx.Node], read: frozenset[fx.Node]) -> tuple[set[fx.Node], set[fx.Node]]:
    """The nodes computed for a node's value, itself included, and the values that they are computed from."""
    reached: set[fx.Node] = set()
    inputs: set[fx.Node] = set()
    stack = [node]
    seen = {node}
    while stack:
        source = stack.pop()
        # a view is lowered to its input, and is in no buffer's origins
        if source in read or not (source in origins or _is_view(source)):
            inputs.add(source)
            continue
        reached.update({source} & origins)
        fresh = [n for n in source.all_input_nodes if n not in seen]
        seen.update(fresh)
        stack += fresh
    return reached, inputs


def _origins(operation: Any) -> set[fx.Node]:
    return {node for node in operation.get_origins() if isinstance(node, fx.Node) and node.op == "call_function"}


def _reads_nothing(buffer: Any) -> bool:
    """Whether a buffer is computed from indices alone."""
    from torch._inductor.ir import ComputedBuffer, Pointwise

    return isinstance(buffer, ComputedBuffer) and isinstance(buffer.data, Pointwise) and buffer.num_reads() == 0


def _users(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes that use a node, or one of its results."""
    for user in node.users:
        if user.target is operator.getitem:
            yield from _users(user)
        yield user


def _is_view(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        return True
    returns = getattr(getattr(node.target, "_schema", None), "returns", ())
    return any(result.alias_info is not None for result in returns)


def is_last(node: fx.Node) -> bool:
    """Whether a node computes the final value of our node that it comes from, and not an intermediate step."""
    names = names_of(node)
    return all(names.isdisjoint(names_of(user)) for user in _users(node) if user.target is not operator.getitem)


def _callee(operation: Any) -> str:
    overload = getattr(operation, "op_overload", None)
    return str(overload) if overload is not None else str(getattr(operation, "python_kernel_name", None) or "")
