"""The problem of ordering kernels: precedences, lifetimes, live bytes, and heuristic orders.

Kernels are numbered as in the list given. An *order* is a permutation of those numbers. See ``memory_check`` for what
the peak is; this module computes the same number its own way.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import NamedTuple

from optfuse.errors import IllegalKernelError
from optfuse.problem.cost import Topology, topology
from optfuse.problem.instance import Instance
from optfuse.problem.solution import Kernel


class Storage(NamedTuple):
    """Bytes that live from the first of ``users`` to the last of them.

    ``from_start``: live from the first kernel on (a donated input). ``to_end``: live until the call returns.
    """

    buffer: int
    bytes: int
    users: tuple[int, ...]
    from_start: bool
    to_end: bool


@dataclass(frozen=True, slots=True)
class OrderProblem:
    """The precedences and the storages of some kernels.

    ``before[k]`` and ``after[k]`` are the kernels directly before and after kernel ``k``; ``base`` are the bytes that
    are live throughout; ``anchor[k]`` is its first op, the tie-breaker everywhere.
    """

    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    storages: tuple[Storage, ...]
    base: int
    anchor: tuple[int, ...]


def order_problem(instance: Instance, kernels: Sequence[Kernel]) -> OrderProblem:
    """The precedences and storages of some kernels whose ``writes`` are known."""
    before: list[list[int]] = [[] for _ in kernels]
    after: list[list[int]] = [[] for _ in kernels]
    for first, then in sorted(precedences(instance, kernels)):
        before[then].append(first)
        after[first].append(then)
    storages, base = _storages(instance, kernels)
    return OrderProblem(
        tuple(map(tuple, before)),
        tuple(map(tuple, after)),
        storages,
        base,
        tuple(min(kernel.ops) for kernel in kernels),
    )


def precedences(instance: Instance, kernels: Sequence[Kernel]) -> set[tuple[int, int]]:
    """Pairs (kernel, later kernel). A recomputed op's value comes from the first of its kernels that writes it."""
    owner = {op: number for number, kernel in enumerate(kernels) for op in kernel.ops}
    if len(owner) == sum([len(kernel.ops) for kernel in kernels]):
        once = {(owner.get(edge.src), owner.get(edge.dst)) for edge in instance.edges}
        return {(first, then) for first, then in once if first is not None and then is not None and first != then}
    holders: dict[int, list[int]] = {}
    for number, kernel in enumerate(kernels):
        for op in kernel.ops:
            holders.setdefault(op, []).append(number)
    none: list[int] = []
    pairs: set[tuple[int, int]] = set()
    for edge in instance.edges:
        sources, targets = holders.get(edge.src, none), holders.get(edge.dst, none)
        if len(sources) == len(targets) == 1:
            pairs.add((sources[0], targets[0]))
            continue
        for target in targets:
            if edge.buffer is None:
                pairs.update((source, target) for source in sources)
            elif target not in sources and sources:
                writers = [source for source in sources if edge.buffer in kernels[source].writes]
                pairs.add(((writers or sources)[0], target))
    return {(source, target) for source, target in pairs if source != target}


def _storages(instance: Instance, kernels: Sequence[Kernel]) -> tuple[tuple[Storage, ...], int]:
    """The storages whose lifetime depends on the order, and the bytes of those that live throughout."""
    users: dict[int, list[int]] = {}
    for number, touched in enumerate(_storages_touched(instance, kernels)):
        for buffer in touched:
            users.setdefault(buffer, []).append(number)
    storages: list[Storage] = []
    base = 0
    kept = _returned(instance)
    for number, buffer in enumerate(instance.buffers):
        if buffer.alias is not None:
            continue
        if buffer.kind != "temporary" and (not buffer.donated or number in kept):
            base += buffer.bytes
        elif buffer.kind != "temporary" or number in users:
            storages.append(Storage(number, buffer.bytes, tuple(users.get(number, ())), buffer.donated, number in kept))
    return tuple(storages), base


def _returned(instance: Instance) -> set[int]:
    """The buffers whose storage is returned to the caller."""
    outputs = ((number, buffer) for number, buffer in enumerate(instance.buffers) if buffer.output)
    return {number if buffer.alias is None else buffer.alias for number, buffer in outputs}


def _storages_touched(instance: Instance, kernels: Sequence[Kernel]) -> Iterator[Collection[int]]:
    """By kernel, the buffers that it reads from memory or writes; an alias counts as the input it aliases."""
    index = topology(instance)
    running = {op for kernel in kernels for op in kernel.ops}
    root = {number: buffer.alias for number, buffer in enumerate(instance.buffers) if buffer.alias is not None}
    for kernel in kernels:
        touched = _touched(index, kernel, running)
        yield {root.get(buffer, buffer) for buffer in touched} if root else touched


def _touched(index: Topology, kernel: Kernel, running: Container[int]) -> set[int]:
    """The buffers that a kernel reads from memory or writes; ``running`` ops are those of all kernels."""
    if len(kernel.ops) == 1:
        (op,) = kernel.ops
        touched = {read.buffer for read in index.offers[op][kernel.scheme].reads}
        touched.update(kernel.writes)
        touched.update([buffer for source, buffer in index.sources[op] if buffer is not None and source in running])
        return touched
    touched = set(kernel.writes)
    inside = set(kernel.ops)
    for op in kernel.ops:
        wanted = {read.buffer for read in index.offers[op][kernel.scheme].reads}
        made: list[int] = []
        for source, buffer in index.sources[op]:
            if buffer is not None:
                if source in inside:
                    made.append(buffer)
                elif source in running:
                    wanted.add(buffer)
        if made:
            wanted.difference_update(made)
        touched |= wanted
    return touched


def live_spans(instance: Instance, kernels: Sequence[Kernel]) -> tuple[list[tuple[int, int, int]], int]:
    """``lifetimes`` in the given order, computed faster: (buffer, first, last), and the bytes live throughout."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for position, touched in enumerate(_storages_touched(instance, kernels)):
        for buffer in touched:
            last[buffer] = position
            first.setdefault(buffer, position)
    kept, end = _returned(instance), len(kernels) - 1
    spans: list[tuple[int, int, int]] = []
    base = 0
    for number, buffer in enumerate(instance.buffers):
        if buffer.alias is not None:
            continue
        if buffer.kind != "temporary" and (not buffer.donated or number in kept):
            base += buffer.bytes
        elif buffer.kind != "temporary":
            spans.append((number, 0, last.get(number, 0)))
        elif number in first:
            spans.append((number, first[number], end if number in kept else last[number]))
    return spans, base


def lifetimes(problem: OrderProblem, order: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """First and last position at which each storage is live, in the order of ``problem.storages``."""
    position = [0] * len(order)
    for place, kernel in enumerate(order):
        position[kernel] = place
    spans: list[tuple[int, int]] = []
    for storage in problem.storages:
        places = [position[user] for user in storage.users]
        first = 0 if storage.from_start else min(places)
        last = len(order) - 1 if storage.to_end else max(places, default=0)
        spans.append((first, last))
    return tuple(spans)


def live_bytes(
    problem: OrderProblem, order: Sequence[int], spans: Sequence[tuple[int, int]] | None = None
) -> list[int]:
    """Live bytes at each position of an order; ``spans`` are its ``lifetimes``, if they are known."""
    spans = lifetimes(problem, order) if spans is None else spans
    living = ((storage.bytes, *span) for storage, span in zip(problem.storages, spans, strict=True))
    return running_sum(living, problem.base, len(order))


def running_sum(living: Iterable[tuple[int, int, int]], base: int, length: int) -> list[int]:
    """Live bytes at each position: ``base`` plus the intervals (bytes, first position, last position) around it."""
    change = [0] * (length + 2)
    for size, first, last in living:
        change[first] += size
        change[max(last, 0) + 1] -= size
    return list(accumulate(change[: max(1, length)], initial=base))[1:]


def peak_bytes(problem: OrderProblem, order: Sequence[int]) -> int:
    """The largest sum of live bytes over an order."""
    return max(live_bytes(problem, order))


def floor_bytes(problem: OrderProblem) -> int:
    """A lower bound on the peak of any order: the most that one kernel, the start or the end keeps live."""
    touched = [0] * max(1, len(problem.before))
    start = end = 0
    for storage in problem.storages:
        for user in storage.users:
            touched[user] += storage.bytes
        start += storage.bytes if storage.from_start else 0
        end += storage.bytes if storage.to_end else 0
    return problem.base + max(*touched, start, end)


def program_order(problem: OrderProblem) -> list[int]:
    """The topological order that stays closest to the program: always the ready kernel with the earliest op.

    Raises:
        IllegalKernelError: When the kernels wait for each other in a cycle.
    """
    return nearest_order(problem.anchor, [(first, then) for first, mine in enumerate(problem.after) for then in mine])


def nearest_order(anchor: Sequence[int], pairs: Collection[tuple[int, int]]) -> list[int]:
    """``program_order`` of kernels by their first ops and all pairs (kernel, later kernel)."""
    order = sorted(range(len(anchor)), key=anchor.__getitem__)
    place = dict(zip(order, range(len(order)), strict=True))
    if all([place[first] < place[then] for first, then in pairs]):
        return order
    after: list[list[int]] = [[] for _ in anchor]
    for first, then in pairs:
        after[first].append(then)
    return _acyclic_schedule(after, anchor, anchor.__getitem__)


def breadth_first(problem: OrderProblem) -> list[int]:
    """Kernels by the length of the longest chain of kernels before them."""
    level = [0] * len(problem.before)
    for kernel in program_order(problem):
        level[kernel] = max((level[earlier] + 1 for earlier in problem.before[kernel]), default=0)
    return _acyclic_schedule(problem.after, problem.anchor, level.__getitem__)


def depth_first(problem: OrderProblem) -> list[int]:
    """Depth-first order: the kernels without successors in program order, each right after all its predecessors."""
    placed: set[int] = set()
    order: list[int] = []
    sinks = [kernel for kernel in program_order(problem) if not problem.after[kernel]]
    for sink in sinks:
        stack = [sink]
        while stack:
            kernel = stack[-1]
            missing = [earlier for earlier in problem.before[kernel] if earlier not in placed]
            if kernel in placed:
                stack.pop()
            elif missing:
                stack.append(min(missing, key=lambda earlier: problem.anchor[earlier]))
            else:
                stack.pop()
                placed.add(kernel)
                order.append(kernel)
    return order


def least_memory_first(problem: OrderProblem) -> list[int]:
    """Greedy order: always the ready kernel that adds the fewest bytes, allocated minus freed."""
    tracker = _Growth(problem)
    waiting = [len(mine) for mine in problem.before]
    heap = [tracker.key(kernel) for kernel, count in enumerate(waiting) if count == 0]
    heapq.heapify(heap)
    order: list[int] = []
    placed: set[int] = set()
    while heap:
        entry = heapq.heappop(heap)
        kernel = entry[-1]
        if kernel in placed or entry != tracker.key(kernel):
            continue
        placed.add(kernel)
        order.append(kernel)
        ready = []
        for later in problem.after[kernel]:
            waiting[later] -= 1
            if waiting[later] == 0:
                ready.append(later)
        for changed in {*tracker.run(kernel), *ready}:
            if changed not in placed and waiting[changed] == 0:
                heapq.heappush(heap, tracker.key(changed))
    return order


HEURISTICS: tuple[Callable[[OrderProblem], list[int]], ...] = (
    program_order,
    depth_first,
    breadth_first,
    least_memory_first,
)


class _Growth:
    """The bytes that each kernel would add if it ran next, updated as kernels run."""

    def __init__(self, problem: OrderProblem) -> None:
        self.problem = problem
        self.growth = [0] * len(problem.before)
        self.storages_of: list[list[int]] = [[] for _ in problem.before]
        self.left = [len(storage.users) for storage in problem.storages]
        self.live = [storage.from_start for storage in problem.storages]
        for number, storage in enumerate(problem.storages):
            for user in storage.users:
                self.storages_of[user].append(number)
                self.growth[user] += 0 if storage.from_start else storage.bytes
                self.growth[user] -= storage.bytes if len(storage.users) == 1 and not storage.to_end else 0

    def key(self, kernel: int) -> tuple[int, int, int]:
        return self.growth[kernel], self.problem.anchor[kernel], kernel

    def run(self, kernel: int) -> set[int]:
        """Run a kernel; return the kernels whose growth changed."""
        changed: set[int] = set()
        for number in self.storages_of[kernel]:
            storage = self.problem.storages[number]
            self.left[number] -= 1
            if not self.live[number]:
                self.live[number] = True
                self._add(storage.users, -storage.bytes, changed)
            if self.left[number] == 1 and not storage.to_end:
                self._add(storage.users, -storage.bytes, changed)
        return changed

    def _add(self, kernels: Sequence[int], amount: int, changed: set[int]) -> None:
        for kernel in kernels:
            self.growth[kernel] += amount
            changed.add(kernel)


def _acyclic_schedule(
    after: Sequence[Sequence[int]], anchor: Sequence[int], priority: Callable[[int], int]
) -> list[int]:
    order = list_schedule(after, anchor, priority)
    if len(order) < len(after):
        placed = set(order)
        stuck = sorted(anchor[k] for k in range(len(after)) if k not in placed)
        raise IllegalKernelError(
            f"kernels wait for each other in a cycle, among those that start with ops {stuck[:8]}; split one of them"
        )
    return order


def list_schedule(
    after: Sequence[Collection[int]], anchor: Sequence[int], priority: Callable[[int], int] | None = None
) -> list[int]:
    """Nodes in a topological order: of those ready, the lowest ``priority``, then the lowest ``anchor``, first.

    ``after[k]`` are the successors of node ``k``. Nodes on a cycle, and all behind one, are left out.
    """
    priority = anchor.__getitem__ if priority is None else priority
    waiting = [0] * len(after)
    for later in chain.from_iterable(after):
        waiting[later] += 1
    heap = [(priority(k), anchor[k], k) for k, count in enumerate(waiting) if count == 0]
    heapq.heapify(heap)
    order: list[int] = []
    while heap:
        kernel = heapq.heappop(heap)[-1]
        order.append(kernel)
        for later in after[kernel]:
            waiting[later] -= 1
            if waiting[later] == 0:
                heapq.heappush(heap, (priority(later), anchor[later], later))
    return order
