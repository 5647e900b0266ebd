"""Maximum flow by Dinic's algorithm."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

INFINITE = 1 << 62
#: Augmenting paths between two checks of the clock.
LOOK_UP_PATHS = 256


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

    def maximum_flow(self, late: Callable[[], bool] = lambda: False) -> int:
        """The maximum flow from source to sink; a smaller flow once it is ``late``."""
        total = paths = 0
        while levels := self._levels():
            places = [0] * len(self._arcs)
            while pushed := self._push(levels, places):
                total += pushed
                paths += 1
                if paths % LOOK_UP_PATHS == 0 and late():
                    return total
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
        """The flow pushed along one path of rising levels, 0 if there is none; dead ends are not tried again."""
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
