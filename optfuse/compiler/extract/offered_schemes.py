"""Which of the walks that an op fits are worth offering: only those in which it can meet what the walk is for.

A reduction's walk serves a pointwise op only in a kernel with that reduction; a frame serves an op only in a kernel
with both ends of one of the frame's crossings. Two ops with a library call on a path between them never share a
kernel. So an op keeps a walk when a chain of values or common reads, none of them cut off by a library call, ties it
to such a seed. This drops no kernel that could pay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from optfuse.compiler.analysis.access import NestAccesses
from optfuse.compiler.analysis.dependence import Dependence
from optfuse.compiler.analysis.memory_traffic import SHARED_BYTES
from optfuse.compiler.analysis.op_work import buffer_bytes
from optfuse.compiler.analysis.placement import Placements
from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph, LoopNest

Neighbours = list[dict[int, set[int]]]  # by op, then by walk


def useful_walks(
    graph: LoopGraph,
    touched: tuple[NestAccesses | None, ...],
    placements: Placements,
    shared: Mapping[Dependence, tuple[int, ...]],
) -> tuple[tuple[int, ...], ...]:
    """The walks to offer, ascending, for each op."""
    reductions = {k for k, op in enumerate(graph.ops) if isinstance(op, LoopNest) and op.reductions}
    kept: list[set[int]] = [
        {w for w in places if placements.walks[w].frame == 0 and (op in reductions or not placements.walks[w].r)}
        for op, places in enumerate(placements.places)
    ]
    neighbours = _neighbours(graph, touched, placements, shared)
    cut_off = _Separation(graph, shared)
    for op in sorted(reductions):
        for w in [w for w in kept[op] if placements.walks[w].r]:
            _spread((op,), w, neighbours, cut_off, kept)
    for w, walk in enumerate(placements.walks):
        for src, dst in placements.frames[walk.frame - 1].crossings if walk.frame else ():
            if dst in neighbours[src].get(w, ()):
                _spread((src, dst), w, neighbours, cut_off, kept)
    return tuple(tuple(sorted(found)) for found in kept)


def _spread(
    seeds: tuple[int, ...], walk: int, neighbours: Neighbours, cut_off: _Separation, kept: list[set[int]]
) -> None:
    """Offer a walk to its seeds and to all that can share a kernel with them."""
    seen = set(seeds)
    stack = list(seeds)
    for seed in seeds:
        kept[seed].add(walk)
    while stack:
        for other in neighbours[stack.pop()].get(walk, ()):
            if other not in seen and not any(cut_off(seed, other) for seed in seeds):
                seen.add(other)
                kept[other].add(walk)
                stack.append(other)


def _neighbours(
    graph: LoopGraph,
    touched: tuple[NestAccesses | None, ...],
    placements: Placements,
    shared: Mapping[Dependence, tuple[int, ...]],
) -> Neighbours:
    """Ops tied, in a walk, by a value that may pass in registers or by reads of one buffer at the same address."""
    found: Neighbours = [{} for _ in touched]

    def tie(a: int, b: int, walk: int) -> None:
        found[a].setdefault(walk, set()).add(b)
        found[b].setdefault(walk, set()).add(a)

    for dependence, walks in shared.items():
        for w in walks:
            tie(dependence.src, dependence.dst, w)
    large = {buffer.name for buffer in graph.buffers if buffer_bytes(buffer) >= SHARED_BYTES}
    first: dict[tuple[object, ...], int] = {}
    for op, (accesses, places) in enumerate(zip(touched, placements.places, strict=True)):
        for w, placed in places.items():
            for load, layout in zip(accesses.loads if accesses else (), placed.loads, strict=True):
                if layout is not None and load.buffer in large:
                    anchor = first.setdefault((w, load.buffer, layout), op)
                    if anchor != op:
                        tie(anchor, op, w)
    return found


class _Separation:
    """Whether a library call lies on a path between two ops."""

    def __init__(self, graph: LoopGraph, dependences: Iterable[Dependence]) -> None:
        count = len(graph.ops)
        self._library = sum(1 << k for k, op in enumerate(graph.ops) if isinstance(op, LibraryCall))
        self._above = [0] * count
        self._below = [0] * count
        ordered = sorted(dependences, key=lambda d: d.dst)
        for d in ordered:
            self._above[d.dst] |= self._above[d.src] | 1 << d.src
        for d in sorted(ordered, key=lambda d: -d.src):
            self._below[d.src] |= self._below[d.dst] | 1 << d.dst

    def __call__(self, a: int, b: int) -> bool:
        first, last = min(a, b), max(a, b)
        return bool(self._below[first] & self._above[last] & self._library)
