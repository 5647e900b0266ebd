"""Cycles of kernels, each of which depends on the one before, and the cuts that forbid them.

Convex kernels may still form a cycle. Anchor each kernel of a cycle at its *entry*, an atom that depends on the kernel
before. In any partition, if for every entry the kernel that holds it also holds an ancestor of the next entry, but not
that entry itself, the cycle is closed. So one cut forbids the cycle in all partitions that close it at the same
entries, not only in the one found.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from optfuse.problem.op_masks import bits
from optfuse.solver.columns.atoms import Atoms
from optfuse.solver.master.master import Anchor, CycleCut

Graph = Mapping[int, set[int]]


def find_cuts(atoms: Atoms, kernels: Sequence[int]) -> list[CycleCut]:
    """A cut for a shortest cycle through each kernel that lies on one; nothing when the partition is acyclic."""
    cuts: dict[CycleCut, None] = {}
    for cycle in cycles_of(atoms, kernels):
        cuts[_cut(atoms, [kernels[number] for number in cycle])] = None
    return list(cuts)


def cycles_of(atoms: Atoms, kernels: Sequence[int]) -> list[list[int]]:
    """Shortest cycles of kernels (masks of atoms), as positions, each before the next."""
    holder = {atom: number for number, mask in enumerate(kernels) for atom in bits(mask)}
    graph: dict[int, set[int]] = {number: set() for number in range(len(kernels))}
    for atom, number in holder.items():
        for source in bits(atoms.sources[atom]):
            if source in holder and holder[source] != number:
                graph[holder[source]].add(number)
    return find_cycles(graph)


def find_cycles(graph: Graph) -> list[list[int]]:
    """For each node on a cycle a shortest one through it, each cycle once, starting at its smallest node."""
    cycles: dict[tuple[int, ...], None] = {}
    for node in _on_cycles(graph):
        cycle = _shortest(graph, node)
        if cycle:
            start = cycle.index(min(cycle))
            cycles[(*cycle[start:], *cycle[:start])] = None
    return [list(cycle) for cycle in cycles]


def _on_cycles(graph: Graph) -> list[int]:
    """The nodes left when those without predecessors, then those without successors, are removed repeatedly."""
    inner = _without_sources(graph)
    backward: dict[int, set[int]] = {node: set() for node in inner}
    for node, after in inner.items():
        for other in after:
            backward[other].add(node)
    return sorted(_without_sources(backward))


def _without_sources(graph: Graph) -> dict[int, set[int]]:
    waiting = dict.fromkeys(graph, 0)
    for after in graph.values():
        for node in after:
            waiting[node] += 1
    ready = [node for node, count in waiting.items() if not count]
    while ready:
        node = ready.pop()
        del waiting[node]
        for after in graph[node]:
            waiting[after] -= 1
            if not waiting[after]:
                ready.append(after)
    return {node: {after for after in graph[node] if after in waiting} for node in waiting}


def _shortest(graph: Graph, start: int) -> list[int]:
    """A shortest cycle through a node, or nothing."""
    parent: dict[int, int] = {}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for after in sorted(graph[node]):
            if after == start:
                cycle = [node]
                while cycle[-1] != start:
                    cycle.append(parent[cycle[-1]])
                return cycle[::-1]
            if after not in parent:
                parent[after] = node
                queue.append(after)
    return []


def _cut(atoms: Atoms, cycle: Sequence[int]) -> CycleCut:
    """The cut of a cycle (kernels as masks, each before the next), each kernel anchored at its first entry."""
    entries = []
    for number, mask in enumerate(cycle):
        before = cycle[number - 1]
        entries.append(next(atom for atom in bits(mask) if atoms.sources[atom] & before))
    anchors = []
    for number, entry in enumerate(entries):
        following = entries[(number + 1) % len(entries)]
        anchors.append(Anchor(entry, following, atoms.before[following] | atoms.sources[following]))
    return CycleCut(tuple(anchors))
