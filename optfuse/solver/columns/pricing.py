"""The cost function of ``problem.cost`` on bitmasks: the same number, faster, for any kernel of a block."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from optfuse.problem.cost import GOP, MIB, Topology, topology
from optfuse.problem.instance import Instance
from optfuse.problem.instance_cache import per_instance
from optfuse.problem.op_masks import bits, mask_of

Key = tuple[int, int]  # a buffer and a footprint: equal keys are one read


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """The terms that one op adds to the price of a kernel in one scheme, in whole picoseconds.

    ``reads``: (key, price, price of a later pass, producers of the buffer). ``writes``: (buffer, price, whether it must
    reach memory). ``users``: (buffer, its consumers).
    """

    reads: tuple[tuple[Key, int, int, int], ...]
    writes: tuple[tuple[int, int, bool], ...]
    users: tuple[tuple[int, int], ...]
    full: bool
    reduces: bool


class Pricer:
    """Prices the kernels of one block."""

    def __init__(self, problem: Instance) -> None:
        """Gather every op's terms."""
        index = topology(problem)
        self.problem = problem
        self.launch = index.launch
        self.compute = tuple(compute // GOP for compute in index.compute)
        self.terms = tuple(
            {scheme: _terms(index, op, scheme) for scheme in offers} for op, offers in enumerate(index.offers)
        )
        self.rivals = tuple(mask_of(index.rivals.get(op, ())) for op in range(len(problem.ops)))
        self._sources = tuple(mask_of(source for source, _ in sources) for sources in index.sources)
        self._users = tuple(mask_of(user for user, buffer in users if buffer is not None) for users in index.users)

    def price(self, mask: int, scheme: int) -> int:
        """``kernel_cost`` of the ops of a bitmask."""
        ops = list(bits(mask))
        device = self.problem.devices[self.problem.ops[ops[0]].device]
        facts = self.problem.schemes[scheme]
        terms = [self.terms[op][scheme] for op in ops]
        memory = self._writes(ops, terms, mask)
        if facts.r > device.persistent_elements and any(term.reduces for term in terms):
            memory += _looped_reads(terms, mask, self._passes(ops, scheme, mask))
        else:
            memory += _reads(terms, mask)
        if any(term.reduces for term in terms):
            programs = max(1, facts.parallel)
            memory = memory * max(device.saturating_programs, programs) // programs
        return max([self.launch[op] for op in ops]) + max(memory, sum(self.compute[op] for op in ops))

    def _writes(self, ops: Iterable[int], terms: Iterable[Terms], mask: int) -> int:
        served = mask
        for op in ops:
            served |= self.rivals[op]
        needed = {buffer for term in terms for buffer, users in term.users if users & ~served}
        return sum(price for term in terms for buffer, price, always in term.writes if always or buffer in needed)

    def _passes(self, ops: list[int], scheme: int, mask: int) -> list[int]:
        """By op, the number of passes of a looped kernel that read its inputs."""
        level: dict[int, int] = {}
        for op in ops:
            before = bits(self._sources[op] & mask)
            level[op] = max((level[b] + self.terms[b][scheme].reduces for b in before), default=0)
        need: dict[int, int] = {}
        for op in reversed(ops):
            need[op] = 1 << level[op]
            term = self.terms[op][scheme]
            if term.full and not term.reduces:
                for user in bits(self._users[op] & mask):
                    need[op] |= need[user]
        return [need[op].bit_count() for op in ops]


@per_instance
def pricer(problem: Instance) -> Pricer:
    """The pricer of a block; remembered by identity."""
    return Pricer(problem)


def _terms(index: Topology, op: int, scheme: int) -> Terms:
    priced = index.priced[op][scheme]
    producers: dict[int, int] = {}
    for source, buffer in index.sources[op]:
        if buffer is not None:
            producers[buffer] = producers.get(buffer, 0) | 1 << source
    users: dict[int, int] = {}
    for user, buffer in index.users[op]:
        if buffer is not None:
            users[buffer] = users.get(buffer, 0) | 1 << user
    return Terms(
        tuple(
            ((buffer, footprint), first // MIB, later // MIB, producers.get(buffer, 0))
            for buffer, footprint, first, later, _ in priced.reads
        ),
        tuple((buffer, price // MIB, always) for buffer, price, _, always in priced.writes),
        tuple(users.items()),
        priced.full,
        priced.reduces,
    )


def _reads(terms: Iterable[Terms], mask: int) -> int:
    first: dict[Key, int] = {}
    for term in terms:
        for key, price, _, producers in term.reads:
            if not producers & mask and price > first.get(key, -1):
                first[key] = price
    return sum(first.values())


def _looped_reads(terms: Iterable[Terms], mask: int, passes: Iterable[int]) -> int:
    first: dict[Key, tuple[int, int]] = {}
    again: dict[Key, int] = {}
    for term, count in zip(terms, passes, strict=True):
        for key, price, later, producers in term.reads:
            if producers & mask:
                continue
            first[key] = max(first.get(key, (-1, 0)), (price, later))
            again[key] = max(again.get(key, 0), count - 1)
    return sum(price + later * again[key] for key, (price, later) in first.items())
