"""An index of one scheme for presolve: which ops can run in it, prices of reads, and connectivity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from optfuse.problem.convexity import kept_apart
from optfuse.problem.cost import MIB, topology
from optfuse.problem.instance import Instance
from optfuse.problem.legality import legal_index
from optfuse.problem.op_masks import bits


@dataclass(frozen=True, slots=True)
class Reading:
    """The price of reading some keys once, and of each later pass over those that a loop may read again."""

    first: int
    later: int


@dataclass(frozen=True, slots=True)
class _Key:
    first: int
    later: int
    readers: int
    producers: int


class SchemeIndex:
    """One scheme of an instance. Sets are bitmasks of ops.

    ``offering`` can run in it; ``reduces`` are the reductions. ``looped``: reductions read their inputs several times.
    ``levels``: the most passes beyond the first. ``stretch``: the largest ratio by which memory time grows in a kernel
    that reduces with too few programs.
    """

    def __init__(self, instance: Instance, scheme: int) -> None:
        """Index the offers of a scheme."""
        index = topology(instance)
        device = instance.devices[instance.ops[0].device]
        facts = instance.schemes[scheme]
        self._instance, self._limits = instance, instance.limits
        #: by op: the ops kept apart from it by the ops between them; computed when needed
        self._apart: list[int] | None = None
        self._weights = [op.weight for op in instance.ops]
        self._heaviest = max(self._weights, default=0)
        self._reach = legal_index(instance).reach()
        self.offering = self.reduces = self._full = 0
        self._keys: dict[tuple[int, int], _Key | None] = {}
        self._reads: dict[int, tuple[tuple[int, int], ...]] = {}
        self._made: dict[int, dict[tuple[int, int], None]] = {}
        self._dearest: dict[tuple[int, int], int] = {}
        for op, offers in enumerate(index.priced):
            if scheme not in offers:
                continue
            self.offering |= 1 << op
            self.reduces |= offers[scheme].reduces << op
            self._full |= (offers[scheme].full and not offers[scheme].reduces) << op
            for buffer, footprint, first, later, _ in offers[scheme].reads:
                producers = sum({1 << source for source, carried in index.sources[op] if carried == buffer})
                dearest = max(self._dearest.get((buffer, footprint), 0), first // MIB)
                self._dearest[buffer, footprint] = dearest
                for maker in bits(producers):
                    self._made.setdefault(maker, {})[buffer, footprint] = None
                self._note((buffer, footprint), _Key(first // MIB, later // MIB, 1 << op, producers))
            self._reads[op] = tuple((buffer, footprint) for buffer, footprint, *_ in offers[scheme].reads)
        self.looped = facts.r > device.persistent_elements
        self.levels = self.reduces.bit_count() if self.looped else 0
        programs = max(1, facts.parallel)
        self.stretch = (max(device.saturating_programs, programs), programs) if self.reduces else (1, 1)
        if self.stretch[0] == self.stretch[1]:
            self.stretch = (1, 1)
        self._barred, self._links = _edges(instance, scheme, self.offering)
        readers: dict[tuple[int, int], int] = {}
        for op, keys in self._reads.items():
            for key in keys:
                readers[key] = readers.get(key, 0) | 1 << op
        for op, keys in self._reads.items():
            for key in keys:
                self._links[op] |= readers[key] & ~(1 << op)
        self._roomy = self._limits.max_ops >= len(instance.ops) and self._limits.max_weight >= sum(self._weights)

    def _note(self, key: tuple[int, int], seen: _Key) -> None:
        known = self._keys.get(key, seen)
        if known is None or (known.first, known.later, known.producers) != (seen.first, seen.later, seen.producers):
            self._keys[key] = None
        else:
            self._keys[key] = _Key(seen.first, seen.later, known.readers | seen.readers, seen.producers)

    def takes(self, group: int) -> bool:
        """Whether all of a group can run in this scheme together."""
        return not group & ~self.offering and not any(self._barred[op] & group for op in bits(group))

    def has_room(self, host: int, group: int) -> bool:
        """Whether ``group`` fits into every kernel that holds ``host``, by size and weight."""
        if self._roomy or self._fits(self.offering | host | group):
            return True
        if self._apart is None:
            self._apart = kept_apart(self._instance, self.offering, self._barred)
        mates = self.offering
        for op in bits(host):
            mates &= ~self._apart[op]
        if not self._limits.connected:
            return self._fits(mates | host | group)
        return all(self._fits(part | group) for part in self._parts(host, mates | host))

    def unreduced(self, host: int, shunned: int) -> int:
        """The host, and all ops that a kernel with it could hold that has no reduction and no op of ``shunned``."""
        barred = shunned | self.reduces
        mates = host
        for op in bits(self.offering & ~host & ~barred):
            hull = self._hull(host | 1 << op)
            if not hull & barred and self.takes(hull):
                mates |= 1 << op
        return self._part(host, mates) if self._limits.connected else mates

    def most_read(self, group: int) -> int:
        """An upper bound on the price of a group's reads, each key once."""
        return sum(self._dearest[key] for key in {key for op in bits(group) for key in self._reads[op]})

    def _fits(self, mask: int) -> bool:
        count, most = mask.bit_count(), self._limits.max_weight
        return count <= self._limits.max_ops and (
            count * self._heaviest <= most or sum(self._weights[op] for op in bits(mask)) <= most
        )

    def _hull(self, mask: int) -> int:
        return mask | self._reach.between(mask)

    def repeating(self, ops: Iterable[int]) -> bool:
        """Whether a loop may read the inputs of one of the ops in several passes."""
        return self.looped and any(self._full >> op & 1 for op in ops)

    def reads(self, group: int, wanted: Callable[[int], bool]) -> Reading | None:
        """The price of a group's reads with ``wanted`` producers; None where readers of a key differ in those."""
        return self._sum(group, [key for op in bits(group) for key in self._reads[op]], wanted)

    def own_reads(self, group: int) -> Reading | None:
        """The price of a group's reads from outside that no other op shares."""
        keys = [key for op in bits(group) for key in self._reads[op]]
        own = [key for key in keys if (known := self._keys[key]) is None or not known.readers & ~group]
        return self._sum(group, own, lambda producers: not producers & group)

    def reads_of(self, group: int) -> Reading | None:
        """The price that other ops pay together to read the group's results."""
        others = self.offering & ~group
        keys = [
            key
            for op in bits(group)
            for key in self._made.get(op, ())
            if (known := self._keys[key]) is None or known.readers & others
        ]
        return self._sum(others, keys, lambda producers: bool(producers & group))

    def _sum(self, readers: int, keys: Sequence[tuple[int, int]], wanted: Callable[[int], bool]) -> Reading | None:
        first = later = 0
        for key in dict.fromkeys(keys):
            known = self._keys[key]
            if known is None:
                return None
            if wanted(known.producers):
                first += known.first
                if self.looped and known.readers & readers & self._full:
                    later += known.later
        return Reading(first, later)

    def neighbours(self, group: int, shunned: int) -> int:
        """The ops directly linked to ``group`` that some kernel without ``shunned`` could hold with it."""
        near = self.offering if not self._limits.connected else 0
        for op in bits(group):
            near |= self._links[op]
        return sum(1 << op for op in bits(near & ~group) if self._compatible(group | 1 << op, shunned))

    def _compatible(self, mask: int, shunned: int) -> bool:
        hull = self._hull(mask)
        return not hull & shunned and self.takes(hull)

    def stays_connected(self, beside: int, group: int, shunned: int) -> bool:
        """Whether the neighbours of a group stay connected without it, in every kernel that holds any two of them."""
        if not self._limits.connected:
            return True
        for one, other in combinations(bits(beside), 2):
            if self._links[one] >> other & 1:
                continue
            hull = self._hull(1 << one | 1 << other)
            if hull & shunned or not self.takes(hull):
                continue
            if hull & group or not self._linked(one, other, hull):
                return False
        return True

    def _linked(self, one: int, other: int, within: int) -> bool:
        return bool(self._part(1 << one, within) >> other & 1)

    def _part(self, start: int, within: int) -> int:
        """The ops that are linked to ``start`` within ``within``."""
        part = start
        for larger in self._parts(start, within):
            part = larger
        return part

    def _parts(self, start: int, within: int) -> Iterator[int]:
        """The ops that are linked to ``start`` within ``within``, step by step; the last set is complete."""
        part = frontier = start
        while frontier:
            yield part
            near = 0
            for op in bits(frontier):
                near |= self._links[op]
            frontier = near & within & ~part
            part |= frontier


def _edges(instance: Instance, scheme: int, offering: int) -> tuple[list[int], list[int]]:
    """By op: the neighbours along edges that the scheme does not allow, and along those that it does."""
    barred, links = [0] * len(instance.ops), [0] * len(instance.ops)
    for edge in instance.edges:
        if offering >> edge.src & offering >> edge.dst & 1:
            table = links if scheme in edge.schemes else barred
            table[edge.src] |= 1 << edge.dst
            table[edge.dst] |= 1 << edge.src
    return barred, links
