"""Union-find."""

from __future__ import annotations

from collections.abc import Iterable


class Components:
    """Disjoint sets of ops, joined step by step."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def find(self, op: int) -> int:
        """The smallest op of the set that holds an op."""
        parent = self._parent
        while parent[op] != op:
            parent[op] = parent[parent[op]]
            op = parent[op]
        return op

    def join(self, ops: Iterable[int]) -> None:
        """Make one set of those that hold the ops."""
        roots = sorted({self.find(op) for op in ops})
        for root in roots[1:]:
            self._parent[root] = roots[0]

    def groups(self) -> list[tuple[int, ...]]:
        """The sets, each ascending, ordered by first op."""
        found: dict[int, list[int]] = {}
        for op in range(len(self._parent)):
            found.setdefault(self.find(op), []).append(op)
        return [tuple(group) for group in found.values()]
