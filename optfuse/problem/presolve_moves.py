"""Bounds on the cost of moving a group of ops from one kernel to another, for presolve.

Groups are bitmasks of ops. *Rise* is an upper bound on the added cost of the kernel that the group joins, *fall* a
lower bound on the saved cost of the kernel that it leaves; both over all possible kernels, in one scheme. None: no
proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from optfuse.problem.cost import GOP, MIB, topology
from optfuse.problem.instance import ALONE, Instance
from optfuse.problem.legality import legal_index
from optfuse.problem.memory_bound import is_memory_bound
from optfuse.problem.op_masks import bits
from optfuse.problem.presolve_scheme import SchemeIndex


class Moves:
    """The moves of one instance (no variants, one device). ``head[op]`` is the first op of the op's group."""

    def __init__(self, instance: Instance, free: int, late: Callable[[], bool] = lambda: False, slack: int = 0) -> None:
        """``free``: ops that no rule of the user's names and that can share kernels.

        Once it is ``late``, long proofs are given up: fewer moves pay then. A move may cost ``slack`` picoseconds.
        """
        index = topology(instance)
        self.instance = instance
        self.free = free
        self.head = list(range(len(instance.ops)))
        self.users = [_mask(user for user, _ in users) for users in index.users]
        self.sources = [_mask(source for source, _ in sources) for sources in index.sources]
        self._compute = [amount // GOP for amount in index.compute]
        self._carried: list[dict[int, int]] = [{} for _ in instance.ops]
        for op, users in enumerate(index.users):
            for user, buffer in users:
                if buffer is not None:
                    self._carried[op][buffer] = self._carried[op].get(buffer, 0) | 1 << user
        self._writes = [
            {s: [(b, price // MIB, always) for b, price, _, always in p.writes] for s, p in priced.items()}
            for priced in index.priced
        ]
        self._launch = min((device.launch_ps for device in instance.devices), default=0)
        self._dearer = {n: op.launch_ps for n, op in enumerate(instance.ops) if op.launch_ps}
        self._schemes = {s: SchemeIndex(instance, s) for s in range(1, len(instance.schemes))}
        self._bound: dict[int, bool] = {}
        self._late = late
        self._slack = slack

    def only(self, table: Sequence[int], group: int) -> int | None:
        """The first op of the one free group that holds all users (or sources) of a group; None if there is none."""
        outside = self.around_in(table, group)
        if not outside or outside & ~self.free:
            return None
        heads = {self.head[op] for op in bits(outside)}
        return next(iter(heads)) if len(heads) == 1 else None

    def around(self, group: int) -> int:
        """Ops with an edge to or from a group."""
        return self.around_in(self.users, group) | self.around_in(self.sources, group)

    def around_in(self, table: Sequence[int], group: int) -> int:
        """The ops outside a group that ``table`` lists for its ops."""
        found = 0
        for op in bits(group):
            found |= table[op]
        return found & ~group

    def joins_consumer(self, group: int, consumer: int) -> int | None:
        """What it costs at most that a group always moves into the kernel of its only consumer; None: too much."""
        return self._loss(group, consumer, self._rise_before, self._fall_before)

    def joins_producer(self, producer: int, group: int) -> int | None:
        """What it costs at most that a group always moves into the kernel of its only producer; None: too much."""
        return self._loss(group, producer, self._rise_after, self._fall_after)

    def _loss(
        self,
        group: int,
        host: int,
        rise: Callable[[int, int, int], int | None],
        fall: Callable[[int, int, int], int | None],
    ) -> int | None:
        if self._dearer and self._dearest_launch(group) > self._dearest_launch(host):
            return None
        hosting = [s for s, index in self._schemes.items() if index.takes(host)]
        leaving = [s for s, index in self._schemes.items() if index.takes(group)]
        if not hosting or not all(
            self._schemes[s].takes(group | host) and self._schemes[s].has_room(host, group) for s in hosting
        ):
            return None
        rises = [amount for s in hosting if (amount := rise(group, host, s)) is not None]
        falls = [amount for s in leaving if (amount := fall(group, host, s)) is not None]
        if len(rises) < len(hosting) or len(falls) < len(leaving):
            return None
        loss = max(0, max(rises) - min(falls))
        return loss if loss <= self._slack else None

    # "before": the group is a producer of its host; "after": a consumer

    def _rise_before(self, group: int, host: int, scheme: int) -> int | None:
        """Added cost where the group produces values that the host reads: its reads, less the host's reads of them."""
        index = self._schemes[scheme]
        if group & index.reduces and index.looped:
            return None
        readers = [op for op in bits(host) if self.sources[op] & group]
        if index.looped and index.reduces and len(readers) > 1:
            return None
        come = index.reads(group, lambda producers: not producers & group)
        go = index.reads(host, lambda producers: bool(producers & group))
        if come is None or go is None:
            return None
        late = any(self.sources[op] & ~group for op in readers)
        repeats = [0, index.levels] if index.repeating(readers) else [0]
        growth = max(
            come.first + come.later * (extra + late) - go.first - go.later * extra for extra in repeats
        ) + self._written(group, scheme, always=True)
        return self._risen(growth, group, scheme) + self._slowed(group, host, scheme)

    def _fall_before(self, group: int, host: int, scheme: int) -> int | None:
        """Saved cost where no other op of the kernel reads the group's values: its writes, less writes for it."""
        gone = self._written(group, scheme, always=True) + self._written(group, scheme, always=False)
        come = 0
        outcasts = ~self._schemes[scheme].offering | host
        for source in bits(self.around_in(self.sources, group)):
            if not self._schemes[scheme].takes(group | 1 << source):
                continue
            for buffer, price, always in self._writes[source].get(scheme, ()):
                users = self._carried[source].get(buffer, 0)
                if not always and users & group and not users & outcasts:
                    come += price
        return self._fallen(gone - come, group, host, scheme)

    def _rise_after(self, group: int, host: int, scheme: int) -> int | None:
        """Added cost where the group reads the host's values: its writes and other reads, less writes for it."""
        index = self._schemes[scheme]
        if group & index.reduces and index.looped and (index.stretch > (1, 1) or group & group - 1):
            return None
        feeding = [op for op in bits(host) if self.users[op] & group]
        if index.looped and index.reduces and len(feeding) > 1 and index.repeating(feeding):
            return None
        come = index.reads(group, lambda producers: not producers & (group | host))
        if come is None:
            return None
        spared = 0
        for op in feeding:
            for buffer, price, always in self._writes[op][scheme]:
                users = self._carried[op].get(buffer, 0)
                if not always and users and not users & ~group:
                    spared += price
        written = self._written(group, scheme, always=True) + self._written(group, scheme, always=False)
        # what is computed before the host's reductions, for ops behind them, is computed again in a later pass
        again = come.later * index.levels if self._apart(group, host) else 0
        growth = come.first + again + written - spared
        return self._risen(growth, group, scheme) + self._slowed(group, host, scheme)

    def _apart(self, group: int, host: int) -> int:
        """The ops of a group that read no value of the host, directly or through others of the group."""
        behind, frontier = 0, self.around_in(self.users, host) & group
        while frontier:
            behind |= frontier
            frontier = self.around_in(self.users, frontier) & group & ~behind
        return group & ~behind

    def _fall_after(self, group: int, host: int, scheme: int) -> int | None:
        """Saved cost where the kernel holds none of the group's producers: its own reads, less reads of its values."""
        index = self._schemes[scheme]
        if index.looped and group & index.reduces:
            return None
        gone = index.own_reads(group)
        come = index.reads_of(group)
        if gone is None or come is None:
            return None
        extra = 0
        if come.later:
            alone = not group & group - 1
            if not alone:
                return None
            extra = index.levels * max(0, come.later - (gone.later if index.repeating([next(bits(group))]) else 0))
        saved = gone.first - come.first - extra + self._written(group, scheme, always=True)
        return self._fallen(saved, group, host, scheme)

    def _risen(self, growth: int, group: int, scheme: int) -> int:
        """Added cost from memory time: stretched where reductions cannot fill the device, hidden by compute time."""
        many, few = self._schemes[scheme].stretch
        growth = -(-growth * many // few) if growth > 0 else growth
        return growth if self._memory_bound(scheme) else max(growth, self._work(group))

    def _slowed(self, group: int, host: int, scheme: int) -> int:
        """Added memory time of a kernel of the host alone that the group turns into a reduction."""
        index = self._schemes[scheme]
        many, few = index.stretch
        if many == few or not group & index.reduces or host & index.reduces:
            return 0
        mates = index.unreduced(host, group)
        memory = index.most_read(mates)
        memory += sum(price for op in bits(mates) for _, price, _ in self._writes[op][scheme])
        return -(-memory * (many - few) // few)

    def _fallen(self, saved: int, group: int, host: int, scheme: int) -> int | None:
        """Saved cost from saved memory time, if the remaining ops stay one kernel; a launch more if none can remain."""
        index = self._schemes[scheme]
        beside = index.neighbours(group, host)
        if not beside:
            reads = index.reads(group, lambda producers: not producers & group)
            memory = self._written(group, scheme, always=True) + self._written(group, scheme, always=False)
            return self._launch + max(memory + (reads.first if reads else 0), self._work(group))
        if saved < 0 or not index.stays_connected(beside, group, host):
            return None
        return saved if self._memory_bound(scheme) else min(saved, self._work(group))

    def _written(self, group: int, scheme: int, *, always: bool) -> int:
        """The price of a group's writes: of those that always reach memory, or of those that others read."""
        return sum(
            price
            for op in bits(group)
            for buffer, price, due in self._writes[op][scheme]
            if due == always and (due or self._carried[op].get(buffer, 0) & ~group)
        )

    def _dearest_launch(self, group: int) -> int:
        return max([self._dearer.get(op, 0) for op in bits(group)])

    def _work(self, group: int) -> int:
        return sum(self._compute[op] for op in bits(group))

    def _memory_bound(self, scheme: int) -> bool:
        if scheme not in self._bound:
            self._bound[scheme] = is_memory_bound(self.instance, scheme, self._late)
        return self._bound[scheme]


def _mask(ops: Iterator[int]) -> int:
    mask = 0
    for op in ops:
        mask |= 1 << op
    return mask


def shareable(instance: Instance) -> int:
    """The ops that can share a kernel: those without the scheme ``ALONE`` and not named by a rule."""
    index = legal_index(instance)
    rules = instance.rules
    free = 0
    for op in range(len(instance.ops)):
        if ALONE not in index.footprints[op]:
            free |= 1 << op
    for op in rules.barrier:
        free &= ~(1 << op)
    for group in (*rules.fuse, *rules.no_fuse, *rules.single_kernel):
        for op in group:
            free &= ~(1 << op)
    return free
