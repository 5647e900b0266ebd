"""A lower bound on the peak bytes of every schedule, over all partitions, orders and recomputation.

While the kernel of an op runs, its loads and writes are live, and every value that is made before it and used after it.
Which values a kernel loads depends on its other ops; but they always separate the op from everything that cannot share
its kernel (inputs, library calls, ops without a common scheme). So their bytes are at least a minimum cut, and so are
those of its writes.

A recomputable value is not certain to be live in between: it could be computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from optfuse.problem.cost import Topology, topology
from optfuse.problem.instance import ALONE, Instance
from optfuse.problem.legality import legal_index
from optfuse.problem.max_flow import INFINITE, Network
from optfuse.problem.op_masks import bits
from optfuse.problem.reach import Reach
from optfuse.solver.control.clock import WALL, Clock
from optfuse.solver.joint.scope import Scope, whole_scope


@dataclass(frozen=True, slots=True)
class _Life:
    """A storage. ``producers``: the ops that certainly make it before any other use. ``users``: those that read it."""

    bytes: int
    producers: int
    users: int
    early: bool
    late: bool


#: Rough seconds of the cuts around one op, for each op of the instance.
CUT_SECONDS_PER_OP = 3e-6
#: Rough seconds to find the storages live across an op, for each storage.
PASSING_SECONDS = 3e-7


def least_peak_bound(
    instance: Instance,
    *,
    recompute: bool = False,
    deadline: float | None = None,
    looks: int | None = None,
    clock: Clock = WALL,
) -> int:
    """A lower bound in bytes on the peak of every schedule of the instance.

    It is weaker when it stops at the deadline, a time of ``clock``, or after the cuts around ``looks`` ops; with no
    time at all it counts what is live at the start or at the end.
    """
    scope = whole_scope(instance, recompute=recompute)
    if deadline is not None:
        seconds = PASSING_SECONDS * len(instance.ops) * len(scope.storages)
        if clock.now() + seconds >= deadline:
            return _ends(scope)
    return _PeakBound(scope).bound(deadline, looks, clock)


@dataclass(frozen=True, slots=True)
class Live:
    """Bytes that are at least live while the kernel of an op runs, where results may take the place of other values.

    ``results``: the sizes of those results of the op that ``bytes`` counts. Each may take the place of a value of its
    size that the kernel is the last to read and that ``bytes`` does not count.
    """

    bytes: int
    results: frozenset[int]


def least_live(instance: Instance, ops: Collection[int], most: int, worth: Callable[[int], int]) -> dict[int, Live]:
    """By op, what is at least live while its kernel runs: of the buffers whose lifetimes the schedule decides.

    The cuts are made around ``most`` of ``ops``: those with the greatest sum of ``worth`` and of all that may be live.
    """
    bounds = _PeakBound(whole_scope(instance))
    passing = {op: bounds.passing(op) for op in ops if bounds.mandatory >> op & 1}
    promising = sorted(passing, key=lambda op: -bounds.touched(op, passing[op]) - worth(op))[:most]
    return {op: bounds.in_place(op, passing[op]) for op in promising}


def _ends(scope: Scope) -> int:
    """The larger of the bytes live at the start and at the end."""
    early = sum(storage.bytes for storage in scope.storages if storage.from_start)
    late = sum(storage.bytes for storage in scope.storages if storage.to_end)
    return scope.base + max(early, late)


class _PeakBound:
    """Bounds the live bytes around one op after the other, the most promising first."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.index: Topology = topology(scope.instance)
        self.reach: Reach = legal_index(scope.instance).reach()
        self.mandatory = legal_index(scope.instance).mandatory
        self.lives = _lives(scope)
        self.schemes = [frozenset(offers) - {ALONE} for offers in self.index.offers]

    def bound(self, deadline: float | None, looks: int | None, clock: Clock) -> int:
        scope = self.scope
        bound = _ends(scope)
        passing = {op: self.passing(op) for op in bits(self.mandatory)}
        most = {op: self.touched(op, passing[op]) for op in passing}
        for number, op in enumerate(sorted(passing, key=lambda op: -most[op])):
            if scope.base + most[op] <= bound or (deadline is not None and clock.now() >= deadline):
                break
            if looks is not None and number >= looks:
                break
            live = self._of_recomputable(op) if scope.recomputable >> op & 1 else self.of_single(op, passing[op])
            bound = max(bound, scope.base + live)
        return bound

    def passing(self, op: int) -> set[int]:
        """Storages live while the kernel of an op runs, whatever else it holds."""
        return self._passing(op, self.reach.descendants[op])

    def touched(self, op: int, passing: set[int]) -> int:
        """The bytes live while an op runs alone."""
        return sum(self.lives[buffer].bytes for buffer in passing | self._touched(op))

    def of_single(self, op: int, passing: set[int]) -> int:
        """The least bytes live while the kernel of an op runs."""
        by = sum(self.lives[buffer].bytes for buffer in passing)
        counted = set(passing)
        return by + self._cut(op, counted, back=True) + self._cut(op, counted, back=False)

    def in_place(self, op: int, passing: set[int]) -> Live:
        """The same where what a loop writes may take the place of a temporary that its kernel reads."""
        by = sum(self.lives[buffer].bytes for buffer in passing)
        counted = set(passing)
        by += self._cut(op, counted, back=True)
        buffers = self.scope.instance.buffers
        read = counted - passing if self.scope.instance.ops[op].kind == "loop" else set[int]()
        taken = {self.lives[b].bytes for b in read if b in self.lives and buffers[b].kind == "temporary"}
        known = counted | {buffer for buffer, life in self.lives.items() if life.bytes in taken}
        written = set(known)
        by += self._cut(op, written, back=False)
        return Live(by, frozenset(self.lives[b].bytes for b in written - known if b in self.lives))

    def _of_recomputable(self, op: int) -> int:
        """The least bytes live while some kernel of a recomputable op runs.

        For each op that cannot join it but depends on it, one of its kernels runs before and writes a value on the way.
        """
        most = 0
        for sink, on_the_way in self._ways(op).items():
            passing = self._passing(op, self.reach.descendants[sink] | 1 << sink)
            by = sum(self.lives[buffer].bytes for buffer in passing)
            sizes = [self.lives[b].bytes if b in self.lives and b not in passing else 0 for b in on_the_way]
            most = max(most, by + self._cut(op, passing | on_the_way, back=True) + min(sizes))
        return most

    def _ways(self, op: int) -> dict[int, set[int]]:
        """By op that cannot share a kernel with ``op`` but depends on it: storages that may carry a value there."""
        ways: dict[int, set[int]] = {}
        region = {op}
        stack = [op]
        while stack:
            here = stack.pop()
            for _, soft, _ in self._neighbours(op, here, back=False):
                fresh = [other for other in soft if other not in region]
                region.update(fresh)
                stack += fresh
        for here in region:
            for user, buffer in self.index.users[here]:
                if buffer is not None and user not in region and self.mandatory >> user & 1:
                    ways.setdefault(user, set())
        for sink in ways:
            for here in region:
                for user, buffer in self.index.users[here]:
                    if buffer is not None and (user == sink or self.reach.ancestors[sink] >> user & 1):
                        ways[sink].add(self.scope.root[buffer])
        return ways

    def _hard(self, op: int, other: int) -> bool:
        """Whether two ops can never share a kernel."""
        return op != other and not self.schemes[op] & self.schemes[other]

    def _passing(self, op: int, after: int) -> set[int]:
        """Storages live while a kernel of ``op`` runs, whatever else it holds; ``after``: ops that run later."""
        before = self.reach.ancestors[op]
        found: set[int] = set()
        for buffer, life in self.lives.items():
            producers, users = life.producers & before, life.users & after
            if not (life.early or producers) or not (life.late or users):
                continue
            apart = life.early or life.late or any(self._hard(op, other) for other in bits(producers | users))
            if apart:
                found.add(buffer)
        return found

    def _touched(self, op: int) -> set[int]:
        """Storages that an op uses when it is alone."""
        return {
            self.scope.root[access.buffer]
            for offer in self.index.offers[op].values()
            for access in (*offer.reads, *offer.writes)
            if self.scope.root[access.buffer] in self.lives
        }

    def _cut(self, op: int, counted: set[int], *, back: bool) -> int:
        """The least bytes that the kernel of an op loads (``back``) or writes.

        Storages of ``counted`` are left out, and those met here are added to it, so that each is counted once even if
        it has aliases or is both read and written.
        """
        network = Network()
        nodes: dict[int, int] = {op: 0 if not back else 1}
        gates: dict[int, tuple[int, int]] = {}
        stack = [op]
        far = 0 if back else 1
        while stack:
            here = stack.pop()
            for buffer, others, open_end in self._neighbours(op, here, back=back):
                root = self.scope.root[buffer]
                if buffer not in gates:
                    size = self.lives[root].bytes if root in self.lives and root not in counted else 0
                    counted.add(root)
                    gates[buffer] = (network.node(), network.node())
                    network.arc(*gates[buffer], size)
                    if open_end:
                        ends = (far, gates[buffer][0]) if back else (gates[buffer][1], far)
                        network.arc(*ends, INFINITE)
                    for other in others:
                        if other not in nodes:
                            nodes[other] = network.node()
                            stack.append(other)
                        ends = (nodes[other], gates[buffer][0]) if back else (gates[buffer][1], nodes[other])
                        network.arc(*ends, INFINITE)
                ends = (gates[buffer][1], nodes[here]) if back else (nodes[here], gates[buffer][0])
                network.arc(*ends, INFINITE)
        return min(network.maximum_flow(), INFINITE)

    def _neighbours(self, op: int, here: int, *, back: bool) -> Iterable[tuple[int, list[int], bool]]:
        """Values that ``here`` uses (``back``) or makes: (buffer, their other ends that can share a kernel with ``op``,
        whether there are further ends). Ops of alternatives are left out: they need not run.
        """
        links = self.index.sources[here] if back else self.index.users[here]
        values: dict[int, list[int]] = {}
        for other, buffer in links:
            if buffer is not None:
                values.setdefault(buffer, []).append(other)
        for buffer in _in_every_offer(self.index, here)[0 if back else 1]:
            values.setdefault(buffer, [])
        buffers = self.scope.instance.buffers
        for buffer, others in values.items():
            sure = [other for other in others if self.mandatory >> other & 1]
            soft = [other for other in sure if not self._hard(op, other)]
            if back:
                open_end = len(soft) < len(sure) or not others
            else:
                open_end = len(soft) < len(sure) or buffers[buffer].output or buffers[buffer].kind != "temporary"
            yield buffer, soft, open_end


def _in_every_offer(index: Topology, op: int) -> tuple[set[int], set[int]]:
    """The buffers that an op reads, and those that it writes, whatever its scheme."""
    offers = index.offers[op].values()
    reads = [{read.buffer for read in offer.reads} for offer in offers]
    writes = [{write.buffer for write in offer.writes} for offer in offers]
    return set[int].intersection(*reads), set[int].intersection(*writes)


def _lives(scope: Scope) -> Mapping[int, _Life]:
    """By buffer, the storages whose lifetime the schedule decides."""
    instance, root = scope.instance, scope.root
    index = topology(instance)
    mandatory = legal_index(instance).mandatory
    producers: dict[int, int] = {}
    sure: dict[int, int] = {}
    users: dict[int, int] = {}
    for op in range(len(instance.ops)):
        for offer in index.offers[op].values():
            for write in offer.writes:
                producers[root[write.buffer]] = producers.get(root[write.buffer], 0) | 1 << op
        reads, writes = _in_every_offer(index, op)
        for buffer in writes:
            sure[root[buffer]] = sure.get(root[buffer], 0) | 1 << op
        for buffer in reads:
            users[root[buffer]] = users.get(root[buffer], 0) | 1 << op
        for user, buffer in index.users[op]:
            if buffer is not None:
                users[root[buffer]] = users.get(root[buffer], 0) | 1 << user
    lives: dict[int, _Life] = {}
    for storage in scope.storages:
        mine = producers.get(storage.buffer, 0)
        certain = mine if mine.bit_count() == 1 and not mine & ~(mandatory & ~scope.recomputable) else 0
        certain &= sure.get(storage.buffer, 0)
        needed = users.get(storage.buffer, 0) & mandatory
        lives[storage.buffer] = _Life(storage.bytes, certain, needed, storage.from_start, storage.to_end)
    return lives
