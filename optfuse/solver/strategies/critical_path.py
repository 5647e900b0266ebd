"""A start for a block of many candidates: fuse the critical path first, then attach the remaining ops.

The backward pass of a recurrent network is a long chain of steps, each of which adds to the gradients of shared
weights. Greedy fusion puts these sums into the kernel at hand or into one of their own at every step. Deferred, the
sums of many steps fit one kernel.

The critical path is the one with the most edges that no kernel can hold. Its ops and their ancestors are fused
greedily. Of the remaining ops, each joins its sole consumer, unless it works on small values only (the additions); then
these groups join earlier kernels that they share a value with, as long as that saves time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import networkx as nx

from optfuse.problem.cost import topology
from optfuse.problem.instance import Instance
from optfuse.problem.legality import common_schemes, is_legal, legal_index
from optfuse.problem.op_masks import bits, mask_of
from optfuse.solver.baseline.greedy import greedy_partition
from optfuse.solver.bounds.parts_bound import small_buffers
from optfuse.solver.columns.pricing import Pricer, pricer
from optfuse.solver.control.clock import WALL, Clock
from optfuse.solver.reduce.blocks import cut_out
from optfuse.solver.reduce.quotient import Quotient
from optfuse.solver.reduce.size_limits import Kernel

Group = tuple[int, ...]


def _greedily(problem: Instance, deadline: float, clock: Clock) -> Sequence[Kernel]:
    return greedy_partition(problem, deadline, clock).partition


def critical_path_partition(problem: Instance, deadline: float = math.inf, clock: Clock = WALL) -> tuple[Kernel, ...]:
    """A legal, acyclic partition of a block without rules and variants; less fused after ``deadline``, of ``clock``."""
    first = _critical(problem)
    parts: list[tuple[int, Callable[[Instance, float, Clock], Sequence[Kernel]]]] = [(first, _greedily)]
    if rest := (1 << len(problem.ops)) - 1 & ~first:
        parts.append((rest, _gathered))
    kernels: list[Kernel] = []
    for mask, fuse in parts:
        part = cut_out(problem, list(bits(mask)))
        for ops, scheme in fuse(part.shape.problem, deadline, clock):
            kernels.append((tuple(part.ops[op] for op in ops), part.schemes[scheme]))
    return tuple(kernels)


def _critical(problem: Instance) -> int:
    """The last op of the critical path and all its ancestors, as a bitmask."""
    ins = topology(problem).ins
    changes = [0] * len(problem.ops)
    for op in range(len(problem.ops)):
        for edge in (problem.edges[position] for position in ins[op]):
            changes[op] = max(changes[op], changes[edge.src] + (not edge.schemes))
    last = max(range(len(problem.ops)), key=lambda op: (changes[op], -op))
    return legal_index(problem).reach().ancestors[last] | 1 << last


def _gathered(problem: Instance, deadline: float, clock: Clock) -> Sequence[Kernel]:
    gathering = _Gathering(problem, _with_only_user(problem))
    for number in gathering.in_order:
        if clock.now() >= deadline:
            break
        gathering.join(number)
    return list(gathering.kernels.values())


def _with_only_user(problem: Instance) -> list[Group]:
    """Groups of each op with its sole consumer, where legal; ops on small values only stay alone."""
    users = topology(problem).users
    small = small_buffers(problem)
    head = list(range(len(problem.ops)))
    for op in reversed(head):
        heads = {head[user] for user, _ in users[op]}
        large = any(read.buffer not in small for offer in problem.ops[op].offers for read in offer.reads)
        if large and len(heads) == 1:
            head[op] = heads.pop()
    groups: dict[int, list[int]] = {}
    for op, mine in enumerate(head):
        groups.setdefault(mine, []).append(op)
    found: list[Group] = []
    for ops in groups.values():
        legal = any(is_legal(problem, ops, scheme) for scheme in common_schemes(problem, ops))
        found += [tuple(ops)] if legal else [(op,) for op in ops]
    return found


class _Gathering:
    """Kernels by number, which grow as groups of ops join kernels that they share a value with."""

    def __init__(self, problem: Instance, groups: Sequence[Group]) -> None:
        self.problem = problem
        self.prices: Pricer = pricer(problem)
        self.kernels: dict[int, Kernel] = {}
        self.costs: dict[int, int] = {}
        self._owner = {op: number for number, ops in enumerate(groups) for op in ops}
        pairs = {(self._owner[edge.src], self._owner[edge.dst]) for edge in problem.edges}
        edges = {(source, target) for source, target in pairs if source != target}
        graph = nx.DiGraph(edges)
        graph.add_nodes_from(range(len(groups)))
        self.in_order = list(nx.lexicographical_topological_sort(graph, key=lambda number: groups[number][0]))
        self._graph = Quotient(self.in_order, edges)
        self._joined: dict[int, int] = {}
        self._readers: dict[tuple[int, int, int], int] = {}
        for number, ops in enumerate(groups):
            self.costs[number], scheme = min(self._ways(ops))
            self.kernels[number] = ops, scheme

    def join(self, number: int) -> None:
        """Merge a group with the earlier kernel that saves the most, until none saves anything."""
        touched = self._touched(number)
        while True:
            touched = {self._current(other) for other in touched} - {number}
            savings = [saving for other in touched if (saving := self._saving(other, number)) is not None]
            merged = len(self._joined) + len(self.kernels)
            for _, other, kernel, cost in sorted(savings, key=lambda saving: (-saving[0], saving[1])):
                if self._graph.merge(other, number, merged):
                    self.kernels[merged], self.costs[merged] = kernel, cost
                    for gone in (other, number):
                        self._joined[gone] = merged
                        del self.kernels[gone], self.costs[gone]
                    break
            if merged not in self.kernels:
                return
            number = merged

    def _touched(self, number: int) -> set[int]:
        """The earlier groups that this one reads from or shares a read with."""
        sources = topology(self.problem).sources
        ops = self.kernels[number][0]
        found = {self._owner[source] for op in ops for source, _ in sources[op]}
        for op in ops:
            for offer in self.problem.ops[op].offers:
                for read in offer.reads:
                    key = offer.scheme, read.buffer, read.footprint
                    found.add(self._readers.get(key, number))
                    self._readers[key] = number
        return found

    def _current(self, number: int) -> int:
        while number in self._joined:
            number = self._joined[number]
        return number

    def _saving(self, one: int, two: int) -> tuple[int, int, Kernel, int] | None:
        """(saving, ``one``, merged kernel, its cost); None where merging saves nothing."""
        ops = tuple(sorted((*self.kernels[one][0], *self.kernels[two][0])))
        if len(ops) > self.problem.limits.max_ops:
            return None
        apart = self.costs[one] + self.costs[two]
        cost, scheme = min(self._ways(ops), default=(apart, 0))
        return (apart - cost, one, (ops, scheme), cost) if cost < apart else None

    def _ways(self, ops: Group) -> Iterator[tuple[int, int]]:
        """Pairs (cost, scheme) for each scheme in which a kernel of some ops is legal."""
        mask = mask_of(ops)
        for scheme in common_schemes(self.problem, ops):
            if is_legal(self.problem, ops, scheme):
                yield self.prices.price(mask, scheme), scheme
