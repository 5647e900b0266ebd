"""The incremental cycle test agrees with a search of the whole graph after every merge."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from optfuse.solver.reduce.quotient import Quotient
from tests.strategies import share

Edges = set[tuple[int, int]]


def has_cycle(edges: Edges, nodes: set[int]) -> bool:
    left = set(nodes)
    while left:
        free = {node for node in left if not any(a in left and b == node for a, b in edges)}
        if not free:
            return True
        left -= free
    return False


@settings(max_examples=share(200), deadline=None, derandomize=True)
@given(st.data())
def test_merges_agree_with_a_full_search(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 9))
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    edges: Edges = data.draw(st.sets(st.sampled_from(pairs), max_size=2 * count))
    graph = Quotient(range(count), edges)
    nodes = set(range(count))
    for merged in range(count, 2 * count - 1):
        left, right = data.draw(st.permutations(sorted(nodes)))[:2]
        renamed = {(merged if a in (left, right) else a, merged if b in (left, right) else b) for a, b in edges}
        renamed = {(a, b) for a, b in renamed if a != b}
        rest = nodes - {left, right} | {merged}
        assert graph.merge(left, right, merged) == (not has_cycle(renamed, rest))
        if graph.rank.get(merged) is not None:
            edges, nodes = renamed, rest
        assert {(a, b) for a, targets in graph.successors.items() for b in targets} == edges
        assert {(a, b) for b, sources in graph.predecessors.items() for a in sources} == edges
        assert all(graph.rank[a] < graph.rank[b] for a, b in edges)
        assert set(graph.rank) == nodes
