"""A graph of groups that stays acyclic while groups are merged, with a quick test before each merge.

Keeps a line-up of the groups in topological order. Merging A and B (A first in the line) makes a cycle exactly when a
path leads from A to B through some other group, and such a path stays between the two in the line.
"""

from __future__ import annotations

from collections.abc import Sequence


class Quotient:
    """Groups are ints; ``successors`` and ``predecessors`` are sets of groups by group."""

    def __init__(self, order: Sequence[int], edges: set[tuple[int, int]]) -> None:
        """Start from groups in topological order and the edges between them."""
        self.successors: dict[int, set[int]] = {group: set() for group in order}
        self.predecessors: dict[int, set[int]] = {group: set() for group in order}
        for source, target in edges:
            self.successors[source].add(target)
            self.predecessors[target].add(source)
        self.line: list[int | None] = list(order)
        self.rank: dict[int, int] = {group: place for place, group in enumerate(order)}

    def merge(self, left: int, right: int, merged: int) -> bool:
        """Replace two groups by a new one named ``merged``; False, and nothing changes, if that makes a cycle."""
        first, last = (left, right) if self.rank[left] < self.rank[right] else (right, left)
        past = self._past_of(first, last)
        if past is None:
            return False
        self._line_up(first, last, merged, past)
        for family, other in ((self.successors, self.predecessors), (self.predecessors, self.successors)):
            mine = (family.pop(first) | family.pop(last)) - {first, last}
            family[merged] = mine
            for neighbour in mine:
                theirs = other[neighbour]
                theirs.discard(first)
                theirs.discard(last)
                theirs.add(merged)
        return True

    def _past_of(self, first: int, last: int) -> set[int] | None:
        """Groups strictly between the two in the line that must go before the merged group; None means a cycle.

        Searches forward from ``first`` and backward from ``last`` in turn and stops when either side is exhausted.
        """
        low, high = self.rank[first], self.rank[last]
        ahead, behind = {first}, {last}
        forward = [g for g in self.successors[first] if self.rank[g] < high]
        backward = [g for g in self.predecessors[last] if self.rank[g] > low]
        ahead.update(forward)
        behind.update(backward)
        if not ahead.isdisjoint(behind):
            return None
        while forward and backward:
            for after in self.successors[forward.pop()]:
                if after in behind:
                    return None
                if after not in ahead and self.rank[after] < high:
                    ahead.add(after)
                    forward.append(after)
            for before in self.predecessors[backward.pop()]:
                if before in ahead:
                    return None
                if before not in behind and self.rank[before] > low:
                    behind.add(before)
                    backward.append(before)
        if not backward:
            return behind - {last}
        between = (self.line[place] for place in range(low + 1, high))
        return {group for group in between if group is not None and group not in ahead}

    def _line_up(self, first: int, last: int, merged: int, past: set[int]) -> None:
        """Give the merged group a place after ``past`` and before everything else between the two."""
        low, high = self.rank.pop(first), self.rank.pop(last)
        between = [group for group in self.line[low + 1 : high] if group is not None]
        segment: list[int] = [group for group in between if group in past]
        segment.append(merged)
        segment.extend(group for group in between if group not in past)
        for place in range(low, high + 1):
            group = segment[place - low] if place - low < len(segment) else None
            self.line[place] = group
            if group is not None:
                self.rank[group] = place
