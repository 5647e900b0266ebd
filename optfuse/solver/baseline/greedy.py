"""TorchInductor's greedy fusion, on the legality of an Instance: the baseline, the warm start and the floor.

The behaviour follows ``torch/_inductor/scheduler.py`` and ``choices.py``:

- up to ten rounds, until one changes nothing (``fuse_nodes``);
- candidates are pairs of nodes that use a common buffer, each node with the next 64 of the buffer's users
  (``get_possible_fusions``);
- a pair needs data in common: bytes that both read in the same way, or that one writes and the other reads
  (``score_fusion_memory``, ``InductorChoices.can_fuse``); at most 64 ops together; and not more single-use inputs of
  equal size than 32 times the saving (``can_fusion_increase_peak_memory``);
- a producer and its consumer may be any distance apart; siblings at most 64 ops, and must share 10 bytes
  (``can_fuse_horizontal``);
- candidates are tried by score: both or neither reduce, then bytes saved, then nearness (``score_fusion``); each is
  tested again on what its nodes have become, and refused when it would make a cycle (``will_fusion_create_cycle``).

What differs: a node keeps every scheme in which it is legal, instead of one loop order that may be changed, and takes
the cheapest at the end. The first alternative of each variant runs, unless a rule names an op of another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from optfuse.problem.cost import Topology, topology
from optfuse.problem.instance import ALONE, Instance
from optfuse.problem.legality import legal_index
from optfuse.problem.solution import Solution
from optfuse.solver.baseline.nodes import Node, Nodes
from optfuse.solver.control.clock import WALL, Clock
from optfuse.solver.memory.assemble import assemble
from optfuse.solver.reduce.quotient import Quotient
from optfuse.solver.rules.groups import Group
from optfuse.solver.rules.seeds import cheapest_schemes, first_schemes, seed_groups

ROUNDS = 10
ATTEMPTS_PER_BUFFER = 64
MAX_OPS = 64
MAX_DISTANCE = 64
MIN_SHARED_BYTES = 10
OVERHEAD_PER_SAVED_BYTE = 32
#: Nodes made between two looks at the clock.
LEAVES = 256

OnFusion = Callable[[tuple[int, ...], tuple[int, ...], int], None]


@dataclass(frozen=True, slots=True)
class Fusion:
    """A legal pair: the schemes left to the union, and what the pair is worth."""

    schemes: frozenset[int]
    same_kind: bool
    saved: int
    nearness: int

    @property
    def score(self) -> tuple[bool, int, int]:
        """Higher is tried first."""
        return self.same_kind and self.saved > 0, self.saved, self.nearness


@dataclass(frozen=True, slots=True)
class GreedyOutcome:
    """Kernels as (ops, scheme). ``complete`` is False when the deadline stopped the rounds."""

    partition: tuple[tuple[tuple[int, ...], int], ...]
    rounds: int
    complete: bool


def greedy(instance: Instance, deadline: float | None = None) -> Solution:
    """Fuse greedily; always a legal solution, in program order. ``deadline`` is a ``time.monotonic`` value.

    Raises:
        IllegalKernelError: When the user's rules ask for a kernel that may not be.
    """
    return assemble(instance, greedy_partition(instance, deadline).partition)


def greedy_partition(
    instance: Instance, deadline: float | None = None, clock: Clock = WALL, on_fusion: OnFusion | None = None
) -> GreedyOutcome:
    """The kernels that greedy fusion ends with, or has by ``deadline``, a time of ``clock``.

    ``on_fusion`` is called at each fusion with the ops of both sides and the bytes that the fusion saves.
    """
    groups = seed_groups(instance)
    search = _Greedy(instance, groups, deadline, clock, on_fusion)
    if search.late:
        return GreedyOutcome(first_schemes(instance, groups), 0, complete=False)
    rounds = 0
    for _ in range(ROUNDS):
        before = len(search.nodes)
        search.round()
        rounds += 1
        if len(search.nodes) == before or len(search.nodes) == 1 or search.late:
            break
    alone, fused = [], []
    for node in search.nodes.values():
        (fused if len(node.ops) > 1 or not search.late else alone).append(Group(node.ops, node.schemes, node.closed))
    kernels = (*cheapest_schemes(instance, fused), *first_schemes(instance, alone))
    return GreedyOutcome(kernels, rounds, not search.late)


class _Greedy:
    """The nodes so far and the graph between them."""

    def __init__(
        self,
        instance: Instance,
        groups: Sequence[Group],
        deadline: float | None,
        clock: Clock,
        on_fusion: OnFusion | None = None,
    ) -> None:
        """Start from ``groups``. When time runs out meanwhile (``late``), not all of them are nodes."""
        self.instance = instance
        self.on_fusion = on_fusion
        self.deadline = deadline
        self.clock = clock
        self.late = False
        self.nodes: dict[int, Node] = {}
        if self.out_of_time():
            return
        self.topology: Topology = topology(instance)
        if self.out_of_time():
            return
        self.make = Nodes(instance, self.topology, legal_index(instance))
        for number, group in enumerate(groups):
            if number % LEAVES == 0 and self.out_of_time():
                return
            self.nodes[number] = self.make.leaf(group.ops, group.schemes, group.closed)
        self.owner = {op: number for number, group in enumerate(groups) for op in group.ops}
        self.fused_into: dict[int, int] = {}
        self.known: dict[tuple[int, int], Fusion | None] = {}
        self.edges_between = _edge_schemes(instance)
        pairs = {
            (self.owner[edge.src], self.owner[edge.dst])
            for edge in instance.edges
            if edge.src in self.owner and edge.dst in self.owner
        }
        self.graph = Quotient(range(len(groups)), {(a, b) for a, b in pairs if a != b})
        self.next_node = len(groups)

    def round(self) -> None:
        """Find all legal pairs, then fuse them from the best down."""
        candidates = self.candidates()
        candidates.sort(key=lambda item: item[0].score, reverse=True)
        for tried, (_, left, right) in enumerate(candidates):
            if tried % 64 == 0 and self.out_of_time():
                return
            self.try_fusion(self.current(left), self.current(right))

    def candidates(self) -> list[tuple[Fusion, int, int]]:
        """Legal pairs of nodes that use a common buffer."""
        by_buffer: dict[int, list[int]] = {}
        for number in self.lined_up():
            node = self.nodes[number]
            if not node.closed:
                for buffer in node.uses:
                    by_buffer.setdefault(buffer, []).append(number)
        seen: set[tuple[int, int]] = set()
        found: list[tuple[Fusion, int, int]] = []
        for group in by_buffer.values():
            for place, left in enumerate(group):
                if self.out_of_time():
                    return found
                for right in group[place + 1 : place + 1 + ATTEMPTS_PER_BUFFER]:
                    if (left, right) in seen:
                        continue
                    seen.add((left, right))
                    fusion = self.can_fuse(left, right)
                    if fusion is not None:
                        found.append((fusion, left, right))
        return found

    def lined_up(self) -> list[int]:
        """Nodes in topological order, each as near to its first op's place in the program as its past allows."""
        order: list[int] = []
        placed: set[int] = set()
        for root in sorted(self.nodes, key=lambda number: self.nodes[number].first):
            stack = [root]
            while stack:
                number = stack[-1]
                missing = [p for p in self.graph.predecessors[number] if p not in placed]
                if number in placed:
                    stack.pop()
                elif missing:
                    stack.extend(sorted(missing, key=lambda p: -self.nodes[p].first))
                else:
                    stack.pop()
                    placed.add(number)
                    order.append(number)
        return order

    def current(self, number: int) -> int:
        """The node that a node has been fused into."""
        while number in self.fused_into:
            number = self.fused_into[number]
        return number

    def out_of_time(self) -> bool:
        """Whether the deadline has passed; remembered in ``late``."""
        self.late = self.late or (self.deadline is not None and self.clock.now() >= self.deadline)
        return self.late

    def try_fusion(self, left: int, right: int) -> None:
        """Fuse two nodes if they still may."""
        if left == right:
            return
        fusion = self.can_fuse(left, right)
        if fusion is None or not self.graph.merge(left, right, self.next_node):
            return
        merged = self.next_node
        self.next_node += 1
        one, two = self.nodes.pop(left), self.nodes.pop(right)
        node = self.make.fused(one, two, fusion.schemes)
        if self.on_fusion is not None:
            self.on_fusion(one.ops, two.ops, fusion.saved)
        self.nodes[merged] = node
        self.fused_into[left] = self.fused_into[right] = merged
        for op in node.ops:
            self.owner[op] = merged

    def can_fuse(self, left: int, right: int) -> Fusion | None:
        """Whether ``left``, the earlier one, may take ``right`` in; remembered, since nodes never change."""
        key = (left, right)
        if key not in self.known:
            self.known[key] = self._can_fuse(left, right)
        return self.known[key]

    def _can_fuse(self, left: int, right: int) -> Fusion | None:
        one, two = self.nodes[left], self.nodes[right]
        schemes = (one.schemes & two.schemes) - {ALONE}
        if not schemes or one.closed or two.closed or one.device != two.device:
            return None
        if right in self.graph.predecessors[left]:
            return None
        vertical = right in self.graph.successors[left]
        distance = max(abs(one.first - two.last), abs(two.first - one.last))
        if not vertical and distance > MAX_DISTANCE:
            return None
        if not self.within_limits(one, two):
            return None
        allowed, saved = self.shared(one, two, schemes, right if vertical else None)
        if not allowed or not saved or (not vertical and saved < MIN_SHARED_BYTES):
            return None
        if sum(one.single_use & two.single_use) > OVERHEAD_PER_SAVED_BYTE * saved:
            return None
        return Fusion(allowed, one.reduces == two.reduces, saved, -distance)

    def within_limits(self, one: Node, two: Node) -> bool:
        """Size, weight and the user's rules."""
        limits = self.instance.limits
        return (
            len(one.ops) + len(two.ops) <= min(MAX_OPS, limits.max_ops)
            and one.weight + two.weight <= limits.max_weight
            and not one.apart & two.mask
        )

    def shared(self, one: Node, two: Node, schemes: frozenset[int], right: int | None) -> tuple[frozenset[int], int]:
        """The schemes that the union may take, and the most bytes that it saves in one of them.

        ``right`` is the second node's number when it uses values of the first.
        """
        crossing = self.crossing(one, right) if right is not None else []
        for _, _, allowed in crossing:
            schemes = schemes & allowed
        linked: set[int] = set()
        most = 0
        for scheme in schemes:
            small, large = sorted((one.reads[scheme], two.reads[scheme]), key=len)
            common = [size for key, size in small.items() if key in large]
            carried = {buffer: size for buffer, sizes, _ in crossing if buffer is not None for size in (sizes[scheme],)}
            if common or crossing or not self.instance.limits.connected:
                linked.add(scheme)
                most = max(most, sum(common) + sum(carried.values()))
        return frozenset(linked), most

    def crossing(self, one: Node, right: int) -> list[tuple[int | None, dict[int, int], frozenset[int]]]:
        """Edges from a node to another: the buffer carried, its bytes by scheme, and the schemes allowed."""
        found: list[tuple[int | None, dict[int, int], frozenset[int]]] = []
        for op in one.ops:
            for user, buffer, allowed in self.edges_between[op]:
                if self.owner.get(user) == right:
                    sizes = {} if buffer is None else self.carried_bytes(op, user, buffer)
                    found.append((buffer, sizes, allowed))
        return found

    def carried_bytes(self, op: int, user: int, buffer: int) -> dict[int, int]:
        """Bytes of a buffer that a user reads, by scheme; what its producer writes where it reads none."""
        sizes = {
            s: w.bytes for s, offer in self.topology.offers[op].items() for w in offer.writes if w.buffer == buffer
        }
        for scheme, offer in self.topology.offers[user].items():
            read = [read.bytes for read in offer.reads if read.buffer == buffer]
            sizes[scheme] = max(read) if read else sizes.get(scheme, 0)
        return sizes


def _edge_schemes(instance: Instance) -> Sequence[list[tuple[int, int | None, frozenset[int]]]]:
    """Edges out of each op as (user, buffer, schemes allowed)."""
    out: list[list[tuple[int, int | None, frozenset[int]]]] = [[] for _ in instance.ops]
    sets = {schemes: frozenset(schemes) for schemes in {edge.schemes for edge in instance.edges}}
    for edge in instance.edges:
        out[edge.src].append((edge.dst, edge.buffer, sets[edge.schemes]))
    return out
