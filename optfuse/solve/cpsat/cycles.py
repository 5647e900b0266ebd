"""Kernels that wait for each other in a circle, and the cuts that forbid it.

Each kernel convex does not mean that their graph is acyclic. For a circle of kernels, anchor each at its *entry*, an
atom that takes something from the kernel before. Whatever partition is chosen: if for every entry the kernel that holds
it also holds something that must precede the next entry, but not that entry itself, the circle is closed again. So one
cut forbids the circle in all partitions that close it at the same entries, not only in the one found.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from optfuse.problem.legality import bits
from optfuse.solve.cpsat.atoms import Atoms
from optfuse.solve.cpsat.master import Anchor, CircleCut

Graph = Mapping[int, set[int]]


def find_cuts(atoms: Atoms, kernels: Sequence[int]) -> list[CircleCut]:
    """A cut for a shortest circle through each kernel that lies on one; nothing when the partition is acyclic."""
    cuts: dict[CircleCut, None] = {}
    for circle in circles_of(atoms, kernels):
        cuts[_cut(atoms, [kernels[number] for number in circle])] = None
    return list(cuts)


def circles_of(atoms: Atoms, kernels: Sequence[int]) -> list[list[int]]:
    """Shortest circles of kernels (masks of atoms) that wait for each other, as positions, each before the next."""
    holder = {atom: number for number, mask in enumerate(kernels) for atom in bits(mask)}
    graph: dict[int, set[int]] = {number: set() for number in range(len(kernels))}
    for atom, number in holder.items():
        for source in bits(atoms.sources[atom]):
            if source in holder and holder[source] != number:
                graph[holder[source]].add(number)
    return find_circles(graph)


def find_circles(graph: Graph) -> list[list[int]]:
    """For each node on a circle a shortest one through it, each circle once, starting at its smallest node."""
    circles: dict[tuple[int, ...], None] = {}
    for node in _on_circles(graph):
        circle = _shortest(graph, node)
        if circle:
            start = circle.index(min(circle))
            circles[(*circle[start:], *circle[:start])] = None
    return [list(circle) for circle in circles]


def _on_circles(graph: Graph) -> list[int]:
    """What is left when nodes without a past, and then those without a future, are removed again and again."""
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
    """A shortest circle through a node, or nothing."""
    parent: dict[int, int] = {}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for after in sorted(graph[node]):
            if after == start:
                circle = [node]
                while circle[-1] != start:
                    circle.append(parent[circle[-1]])
                return circle[::-1]
            if after not in parent:
                parent[after] = node
                queue.append(after)
    return []


def _cut(atoms: Atoms, circle: Sequence[int]) -> CircleCut:
    """Anchor every kernel of a circle (as masks, each before the next) at its first entry."""
    entries = []
    for number, mask in enumerate(circle):
        before = circle[number - 1]
        entries.append(next(atom for atom in bits(mask) if atoms.sources[atom] & before))
    anchors = []
    for number, entry in enumerate(entries):
        following = entries[(number + 1) % len(entries)]
        anchors.append(Anchor(entry, following, atoms.before[following] | atoms.sources[following]))
    return CircleCut(tuple(anchors))
