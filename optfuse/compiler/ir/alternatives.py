"""The variants of a graph: pairs of alternatives, of which one runs. The second ops stand right behind the first.

A second op writes the same temporaries as the first: a product of matrices those of a library call, a nest those of a
nest that reads other values. What only the first ones read is part of their alternative: values that the second ones
compute themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx

from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph, LoopNest, Op, View, views
from optfuse.compiler.ir.traversal import dot_in, loads

#: Two alternatives: positions of the ops of each.
Alternatives = tuple[tuple[int, ...], tuple[int, ...]]


def written_by(op: Op) -> tuple[str, ...]:
    """The buffers that an op makes or stores to."""
    if isinstance(op, LibraryCall):
        return tuple(output for output in op.outputs if output is not None)
    return tuple(store.buffer for store in op.stores)


def is_second_alternative(op: Op, before: Op) -> bool:
    """Whether an op computes what the op before it does, in another way; both write temporaries."""
    if not isinstance(op, LoopNest) or any(store.indirect for store in op.stores):
        return False
    if set(written_by(op)) != set(written_by(before)):
        return False
    if isinstance(before, LibraryCall):
        return dot_in(op) is not None
    return op.origin == before.origin and set(_read(op)) != set(_read(before))


def first_alternatives(graph: LoopGraph) -> dict[int, int]:
    """By position of a second alternative's op, the position of the first one, right before it."""
    temporary = {buffer.name for buffer in graph.buffers if buffer.kind == "temporary"}
    pairs = enumerate(zip(graph.ops, graph.ops[1:], strict=False), 1)
    seconds = (k for k, (first, op) in pairs if is_second_alternative(op, first))
    return {k: k - 1 for k in seconds if temporary.issuperset(written_by(graph.ops[k]))}


def variants_of(graph: LoopGraph) -> tuple[Alternatives, ...]:
    """The variants of a graph, each with two alternatives, in the order of their first ops."""
    first_of = first_alternatives(graph)
    firsts = {first: second for second, first in first_of.items()}
    readers = _readers(graph)
    returned = {output.buffer for output in graph.outputs if isinstance(output, View)}
    groups: nx.Graph[int] = nx.Graph()
    groups.add_nodes_from(firsts)
    inside = set(firsts)
    for position in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[position]
        made = written_by(op)
        using = {user for name in made for user in readers.get(name, ())}
        beside = position in firsts or position in first_of or isinstance(op, LibraryCall)
        if beside or not using or not using <= inside or returned.intersection(made):
            continue
        inside.add(position)
        groups.add_edges_from((position, user) for user in using)
    found: list[Alternatives] = []
    for members in nx.connected_components(groups):
        first = tuple(sorted(members))
        found.append((first, tuple(sorted(firsts[op] for op in first if op in firsts))))
    return tuple(sorted(found))


def _readers(graph: LoopGraph) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for position, op in enumerate(graph.ops):
        for name in _read(op):
            found.setdefault(name, set()).add(position)
    return found


def _read(op: Op) -> Sequence[str]:
    if isinstance(op, LibraryCall):
        return [*(view.buffer for view in views(op)), *op.holds, *op.mutates]
    return [load.buffer for load in loads(op)] + [store.buffer for store in op.stores if store.indirect]
