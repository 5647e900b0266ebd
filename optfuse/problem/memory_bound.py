"""Is every kernel of a scheme memory-bound? A certificate by maximum flow.

The compute time of a kernel is the sum over its ops; its memory time is at least the price of what it reads from
outside and writes for outside. The set of ops for which compute exceeds this memory by most, whatever its shape, is a
minimum cut: each op's compute flows into the reads and writes that it needs. When all of it arrives, no kernel computes
for longer than it moves bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from optfuse.problem.cost import GOP, MIB, Topology, topology
from optfuse.problem.instance import Instance

INFINITE = 1 << 62


class Network:
    """A flow network with integer capacities; nodes 0 and 1 are source and sink."""

    def __init__(self) -> None:
        self._arcs: list[list[int]] = [[], []]
        self._target: list[int] = []
        self._room: list[int] = []

    def node(self) -> int:
        """A new node."""
        self._arcs.append([])
        return len(self._arcs) - 1

    def arc(self, tail: int, head: int, capacity: int) -> None:
        """An arc, and its reverse of capacity 0."""
        for start, end, room in ((tail, head, capacity), (head, tail, 0)):
            self._arcs[start].append(len(self._target))
            self._target.append(end)
            self._room.append(room)

    def maximum_flow(self) -> int:
        """Push as much as goes from source to sink (Dinic's algorithm)."""
        total = 0
        while levels := self._levels():
            places = [0] * len(self._arcs)
            while pushed := self._push(levels, places):
                total += pushed
        return total

    def _levels(self) -> list[int] | None:
        levels = [-1] * len(self._arcs)
        levels[0] = 0
        queue = deque([0])
        while queue:
            node = queue.popleft()
            for arc in self._arcs[node]:
                head = self._target[arc]
                if self._room[arc] and levels[head] < 0:
                    levels[head] = levels[node] + 1
                    queue.append(head)
        return levels if levels[1] >= 0 else None

    def _push(self, levels: list[int], places: list[int]) -> int:
        """One path along rising levels; arcs that lead nowhere are not tried again."""
        path: list[int] = []
        node = 0
        while node != 1:
            if places[node] < len(self._arcs[node]):
                arc = self._arcs[node][places[node]]
                head = self._target[arc]
                if self._room[arc] and levels[head] == levels[node] + 1:
                    path.append(arc)
                    node = head
                else:
                    places[node] += 1
            elif path:
                node = self._target[path.pop() ^ 1]
                places[node] += 1
            else:
                return 0
        amount = min(self._room[arc] for arc in path)
        for arc in path:
            self._room[arc] -= amount
            self._room[arc ^ 1] += amount
        return amount


def is_memory_bound(problem: Instance, scheme: int) -> bool:
    """Whether no kernel of the scheme, legal or not, computes for longer than it moves bytes. True is a proof."""
    index = topology(problem)
    ops = [op for op, offers in enumerate(index.priced) if scheme in offers]
    network = Network()
    nodes = {op: network.node() for op in ops}
    compute = 0
    for op in ops:
        compute += index.compute[op] // GOP
        network.arc(0, nodes[op], index.compute[op] // GOP)
        for buffer, price, _, always in index.priced[op][scheme].writes:
            users = [user for user, carried in index.users[op] if carried == buffer]
            if always or any(user not in nodes for user in users):
                network.arc(nodes[op], 1, price // MIB)
            elif users:
                write = network.node()
                network.arc(nodes[op], write, price // MIB)
                for user in users:
                    network.arc(write, nodes[user], INFINITE)
    for price, readers, makers in _reads(index, ops, scheme):
        if len(makers) <= 1:
            key = network.node()
            network.arc(key, nodes.get(next(iter(makers), -1), 1), price // MIB)
            for reader in readers:
                network.arc(nodes[reader], key, INFINITE)
    return network.maximum_flow() == compute


def _reads(index: Topology, ops: Iterable[int], scheme: int) -> list[tuple[int, list[int], set[int]]]:
    """(least price, readers, makers) of each key; keys whose readers disagree on the maker are left out."""
    prices: dict[tuple[int, int], int] = {}
    readers: dict[tuple[int, int], list[int]] = {}
    makers: dict[tuple[int, int], set[int]] = {}
    mixed: set[tuple[int, int]] = set()
    for op in ops:
        for buffer, footprint, first, _, _ in index.priced[op][scheme].reads:
            key = (buffer, footprint)
            mine = {source for source, carried in index.sources[op] if carried == buffer}
            prices[key] = min(prices.get(key, first), first)
            readers.setdefault(key, []).append(op)
            if makers.setdefault(key, mine) != mine:
                mixed.add(key)
    return [(prices[key], readers[key], makers[key]) for key in prices if key not in mixed]
