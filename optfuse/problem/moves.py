"""What it costs to move a group of ops from one kernel to another, at worst: the arithmetic behind presolve.

Groups are bitmasks of ops. *Rise* is the most by which the joined kernel can become dearer, *fall* the least by which
the kernel left behind becomes cheaper; both over all kernels that there could be, in one scheme. None means: no proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from optfuse.problem.cost import GOP, MIB, topology
from optfuse.problem.instance import ALONE, Instance
from optfuse.problem.legality import bits, legal_index
from optfuse.problem.memory_bound import is_memory_bound
from optfuse.problem.walking import Walking


class Moves:
    """Judges moves in one instance (no variants, one device). ``head[op]`` is the first op of the op's group."""

    def __init__(self, instance: Instance, free: int, late: Callable[[], bool] = lambda: False) -> None:
        """``free``: ops that no rule of the user's names and that can share kernels.

        Once it is ``late``, long proofs are given up: fewer moves pay then.
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
        self._walking = {s: Walking(instance, s) for s in range(1, len(instance.schemes))}
        self._bound: dict[int, bool] = {}
        self._late = late

    def only(self, table: Sequence[int], group: int) -> int | None:
        """The one free group that all the users (or sources) of a group belong to, by its first op."""
        outside = self.around_in(table, group)
        if not outside or outside & ~self.free:
            return None
        heads = {self.head[op] for op in bits(outside)}
        return next(iter(heads)) if len(heads) == 1 else None

    def around(self, group: int) -> int:
        """Ops with an edge to or from a group."""
        return self.around_in(self.users, group) | self.around_in(self.sources, group)

    def around_in(self, table: Sequence[int], group: int) -> int:
        """Ops outside a group that a table names for its ops."""
        found = 0
        for op in bits(group):
            found |= table[op]
        return found & ~group

    def joins_consumer(self, group: int, consumer: int) -> bool:
        """Whether a group may move into the kernel of its only consumer, whatever the two kernels are."""
        return self._pays(group, consumer, self._rise_before, self._fall_before)

    def joins_producer(self, producer: int, group: int) -> bool:
        """Whether a group may move into the kernel of its only producer, whatever the two kernels are."""
        return self._pays(group, producer, self._rise_after, self._fall_after)

    def _pays(
        self,
        group: int,
        host: int,
        rise: Callable[[int, int, int], int | None],
        fall: Callable[[int, int, int], int | None],
    ) -> bool:
        hosting = [s for s, walking in self._walking.items() if walking.takes(host)]
        leaving = [s for s, walking in self._walking.items() if walking.takes(group)]
        if not hosting or not all(
            self._walking[s].takes(group | host) and self._walking[s].has_room(host, group) for s in hosting
        ):
            return False
        rises = [amount for s in hosting if (amount := rise(group, host, s)) is not None]
        falls = [amount for s in leaving if (amount := fall(group, host, s)) is not None]
        return len(rises) == len(hosting) and len(falls) == len(leaving) and max(rises) <= min(falls)

    # "before": the group comes before its host, which consumes what it makes; "after": the other way around.

    def _rise_before(self, group: int, host: int, scheme: int) -> int | None:
        """The group computes what the host reads: its reads come, the host's reads of it go."""
        walking = self._walking[scheme]
        if group & walking.reduces and walking.looped:
            return None
        readers = [op for op in bits(host) if self.sources[op] & group]
        if walking.looped and walking.reduces and len(readers) > 1:
            return None
        come = walking.reads(group, lambda makers: not makers & group)
        go = walking.reads(host, lambda makers: bool(makers & group))
        if come is None or go is None:
            return None
        late = any(self.sources[op] & ~group for op in readers)
        repeats = [0, walking.levels] if walking.repeating(readers) else [0]
        growth = max(
            come.first + come.later * (extra + late) - go.first - go.later * extra for extra in repeats
        ) + self._written(group, scheme, always=True)
        return self._risen(growth, group, scheme) + self._slowed(group, host, scheme)

    def _fall_before(self, group: int, host: int, scheme: int) -> int | None:
        """The group leaves a kernel that used none of its values: its writes go, those it spared others may come."""
        gone = self._written(group, scheme, always=True) + self._written(group, scheme, always=False)
        come = 0
        outcasts = ~self._walking[scheme].offering | host
        for source in bits(self.around_in(self.sources, group)):
            if not self._walking[scheme].takes(group | 1 << source):
                continue
            for buffer, price, always in self._writes[source].get(scheme, ()):
                users = self._carried[source].get(buffer, 0)
                if not always and users & group and not users & outcasts:
                    come += price
        return self._fallen(gone - come, group, host, scheme)

    def _rise_after(self, group: int, host: int, scheme: int) -> int | None:
        """The group uses what the host makes: its writes and other reads come, the host's writes for it alone go."""
        walking = self._walking[scheme]
        if group & walking.reduces and walking.looped and (walking.stretch > (1, 1) or group & group - 1):
            return None
        feeding = [op for op in bits(host) if self.users[op] & group]
        if walking.looped and walking.reduces and len(feeding) > 1 and walking.repeating(feeding):
            return None
        come = walking.reads(group, lambda makers: not makers & (group | host))
        if come is None:
            return None
        spared = 0
        for op in feeding:
            for buffer, price, always in self._writes[op][scheme]:
                users = self._carried[op].get(buffer, 0)
                if not always and users and not users & ~group:
                    spared += price
        written = self._written(group, scheme, always=True) + self._written(group, scheme, always=False)
        return self._risen(come.first + written - spared, group, scheme) + self._slowed(group, host, scheme)

    def _fall_after(self, group: int, host: int, scheme: int) -> int | None:
        """The group leaves a kernel that holds none of its sources: reads of its own go, reads of it come."""
        walking = self._walking[scheme]
        if walking.looped and group & walking.reduces:
            return None
        gone = walking.own_reads(group)
        come = walking.reads_of(group)
        if gone is None or come is None:
            return None
        extra = 0
        if come.later:
            alone = not group & group - 1
            if not alone:
                return None
            extra = walking.levels * max(0, come.later - (gone.later if walking.repeating([next(bits(group))]) else 0))
        saved = gone.first - come.first - extra + self._written(group, scheme, always=True)
        return self._fallen(saved, group, host, scheme)

    def _risen(self, growth: int, group: int, scheme: int) -> int:
        """From memory to cost: stretched where reductions cannot fill the device, hidden where compute rules."""
        many, few = self._walking[scheme].stretch
        growth = -(-growth * many // few) if growth > 0 else growth
        return growth if self._memory_bound(scheme) else max(growth, self._work(group))

    def _slowed(self, group: int, host: int, scheme: int) -> int:
        """What a kernel of the host alone pays more for its memory when the group makes it a reduction."""
        walking = self._walking[scheme]
        many, few = walking.stretch
        if many == few or not group & walking.reduces or host & walking.reduces:
            return 0
        mates = walking.unreduced(host, group)
        memory = walking.most_read(mates)
        memory += sum(price for op in bits(mates) for _, price, _ in self._writes[op][scheme])
        return -(-memory * (many - few) // few)

    def _fallen(self, saved: int, group: int, host: int, scheme: int) -> int | None:
        """From memory to cost, if what stays behind stays one kernel; a launch more if nothing can stay behind."""
        walking = self._walking[scheme]
        beside = walking.neighbours(group, host)
        if not beside:
            reads = walking.reads(group, lambda makers: not makers & group)
            memory = self._written(group, scheme, always=True) + self._written(group, scheme, always=False)
            return self._launch + max(memory + (reads.first if reads else 0), self._work(group))
        if saved < 0 or not walking.stays_connected(beside, group, host):
            return None
        return saved if self._memory_bound(scheme) else min(saved, self._work(group))

    def _written(self, group: int, scheme: int, *, always: bool) -> int:
        """The price of the writes of a group: of those always due, or of those due because others use them."""
        return sum(
            price
            for op in bits(group)
            for buffer, price, due in self._writes[op][scheme]
            if due == always and (due or self._carried[op].get(buffer, 0) & ~group)
        )

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
    """Ops that can share a kernel: they do not offer to run alone, and no rule of the user's names them."""
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
