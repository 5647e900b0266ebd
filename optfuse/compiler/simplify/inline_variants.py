"""Offer the solver values that are stored, or computed by their readers: a variant of which one alternative runs.

- *stored*: the producers, and the readers as they are.
- *computed*: readers that compute the value themselves, and read what its producers read.

What hardly ever loses is inlined before (``inline_moved``). Offered here is what may pay or not, by the same rewrite
with a wider limit: values that are padded, cut, rolled or concatenated and whose producers read up to twice as much.
Each combination of alternatives of a group of connected loops is solved by itself, so few are offered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import networkx as nx

from optfuse.compiler.analysis.dependence import footprint, users
from optfuse.compiler.analysis.op_work import buffer_bytes
from optfuse.compiler.ir.nodes import Buffer, LoopGraph, LoopNest, Op
from optfuse.compiler.simplify.inline_moved import Moving
from optfuse.compiler.simplify.split_reductions import fresh

#: The bytes that readers of a moved value may read instead of it exceed its own by a share of 1 / MORE at most.
MORE = 1
#: Values of fewer bytes, with those before them, are not offered: writing and reading them takes about a launch.
LEAST_BYTES = 4 << 20
#: Variants that are offered among loops that pass values to each other.
TOGETHER = 2


@dataclass(frozen=True, slots=True)
class _Offer:
    """Readers that compute values, by position, and the bytes of these values."""

    computed: Mapping[int, LoopNest]
    bytes: int


def with_inlined(graph: LoopGraph) -> LoopGraph:
    """The graph with a second form of each reader that may compute a value itself, behind its first form."""
    chosen = _few(graph, sorted(_offers(graph), key=lambda offer: (-offer.bytes, min(offer.computed))))
    computed = {position: nest for offer in chosen for position, nest in offer.computed.items()}
    taken = {op.name for op in graph.ops} | {buffer.name for buffer in graph.buffers}
    ops: list[Op] = []
    for position, op in enumerate(graph.ops):
        ops.append(op)
        if position in computed:
            ops.append(replace(computed[position], name=fresh(f"{op.name}_computing", taken)))
    return replace(graph, ops=tuple(ops))


def _offers(graph: LoopGraph) -> list[_Offer]:
    """The producers that ``inline_moved`` would inline under a wider limit, each with all of its readers."""
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    rewritten = {op.name: op for op in Moving(graph, MORE).result().ops}
    readers, _ = users(graph)
    together: nx.Graph[int] = nx.Graph()
    for position, op in enumerate(graph.ops):
        if op.name not in rewritten:
            together.add_edges_from((position, user) for name in footprint(op)[1] for user in readers[name])
    found: list[_Offer] = []
    for members in nx.connected_components(together):
        gone = {k for k in members if graph.ops[k].name not in rewritten}
        computed = {k: op for k in sorted(members - gone) if isinstance(op := rewritten[graph.ops[k].name], LoopNest)}
        size = _bytes((graph.ops[k] for k in gone), buffers)
        if computed and size >= LEAST_BYTES and all(_stores_temporaries(nest, buffers) for nest in computed.values()):
            found.append(_Offer(computed, size))
    return found


def _stores_temporaries(nest: LoopNest, buffers: Mapping[str, Buffer]) -> bool:
    return all(buffers[store.buffer].kind == "temporary" and not store.indirect for store in nest.stores)


def _bytes(ops: Iterable[Op], buffers: Mapping[str, Buffer]) -> int:
    return sum(buffer_bytes(buffers[name]) for op in ops for name in footprint(op)[1])


def _few(graph: LoopGraph, offers: list[_Offer]) -> list[_Offer]:
    """The first offers, at most ``TOGETHER`` among connected loops."""
    made: dict[str, int] = {}
    linked: nx.Graph[int] = nx.Graph()
    for position, op in enumerate(graph.ops):
        if isinstance(op, LoopNest):
            reads, writes = footprint(op)
            linked.add_node(position)
            linked.add_edges_from((made[name], position) for name in reads if name in made)
            made.update(dict.fromkeys(writes, position))
    group = {op: number for number, ops in enumerate(nx.connected_components(linked)) for op in ops}
    count: dict[int, int] = {}
    chosen: list[_Offer] = []
    for offer in offers:
        mine = group[min(offer.computed)]
        if count.get(mine, 0) < TOGETHER:
            chosen.append(offer)
            count[mine] = count.get(mine, 0) + 1
    return chosen
