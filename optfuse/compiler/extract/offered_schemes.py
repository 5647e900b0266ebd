"""Which of the walks that an op fits it offers: those in which it can share a kernel with an op that needs the walk.

A reduction's or scan's walk is of use to a pointwise op only in a kernel with it; a frame, only in a kernel with both
ends of one of its crossings. These are the walk's seeds. Two ops with a library call on a path between them never share
a kernel. So an op offers a walk if a chain of values or common reads, none of them separated from the seeds by a
library call, connects it to them. No kernel that could be cheaper is lost.
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


def offered_walks(
    graph: LoopGraph,
    touched: tuple[NestAccesses | None, ...],
    placements: Placements,
    shared: Mapping[Dependence, tuple[int, ...]],
) -> tuple[tuple[int, ...], ...]:
    """By op: the walks that it offers, ascending."""
    reductions = {k for k, op in enumerate(graph.ops) if isinstance(op, LoopNest) and not op.pointwise}
    kept: list[set[int]] = [
        {w for w in places if placements.walks[w].frame == 0 and (op in reductions or not placements.walks[w].r)}
        for op, places in enumerate(placements.places)
    ]
    neighbours = _neighbours(graph, touched, placements, shared)
    separated = _Separation(graph, shared)
    for op in sorted(reductions):
        for w in [w for w in kept[op] if placements.walks[w].r]:
            _spread((op,), w, neighbours, separated, kept)
    for w, walk in enumerate(placements.walks):
        for src, dst in placements.frames[walk.frame - 1].crossings if walk.frame else ():
            if dst in neighbours[src].get(w, ()):
                _spread((src, dst), w, neighbours, separated, kept)
    return tuple(tuple(sorted(found)) for found in kept)


def _spread(
    seeds: tuple[int, ...], walk: int, neighbours: Neighbours, separated: _Separation, kept: list[set[int]]
) -> None:
    """Add a walk to the offers of its seeds and of all ops that can share a kernel with them."""
    seen = set(seeds)
    stack = list(seeds)
    for seed in seeds:
        kept[seed].add(walk)
    while stack:
        for other in neighbours[stack.pop()].get(walk, ()):
            if other not in seen and not any(separated(seed, other) for seed in seeds):
                seen.add(other)
                kept[other].add(walk)
                stack.append(other)


def _neighbours(
    graph: LoopGraph,
    touched: tuple[NestAccesses | None, ...],
    placements: Placements,
    shared: Mapping[Dependence, tuple[int, ...]],
) -> Neighbours:
    """By op and walk: the ops with which it exchanges a value in registers or shares a read at the same addresses."""
    found: Neighbours = [{} for _ in touched]

    def connect(a: int, b: int, walk: int) -> None:
        found[a].setdefault(walk, set()).add(b)
        found[b].setdefault(walk, set()).add(a)

    for dependence, walks in shared.items():
        for w in walks:
            connect(dependence.src, dependence.dst, w)
    large = {buffer.name for buffer in graph.buffers if buffer_bytes(buffer) >= SHARED_BYTES}
    first: dict[tuple[object, ...], int] = {}
    for op, (accesses, places) in enumerate(zip(touched, placements.places, strict=True)):
        for w, placed in places.items():
            for load, layout in zip(accesses.loads if accesses else (), placed.loads, strict=True):
                if layout is not None and load.buffer in large:
                    anchor = first.setdefault((w, load.buffer, layout), op)
                    if anchor != op:
                        connect(anchor, op, w)
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
