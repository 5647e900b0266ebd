"""The nodes of greedy fusion: groups of fused ops with their reads and writes in each scheme left to them."""

from __future__ import annotations

from dataclasses import dataclass

from optfuse.problem.cost import Topology
from optfuse.problem.instance import ALONE, Instance
from optfuse.problem.legality import LegalIndex

Footprints = dict[tuple[int, int], int]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """Ops fused so far. ``reads[s]``: bytes of each footprint read from memory in scheme ``s``, one of its schemes.

    ``single_use`` are the sizes of the temporaries of which it is the only reader. ``closed`` nodes are not fused.
    """

    ops: tuple[int, ...]
    mask: int
    apart: int
    weight: int
    device: int
    first: int
    last: int
    schemes: frozenset[int]
    reads: dict[int, Footprints]
    writes: frozenset[int]
    uses: frozenset[int]
    single_use: frozenset[int]
    reduces: bool
    closed: bool


class Nodes:
    """Makes nodes of the ops of an instance."""

    def __init__(self, instance: Instance, topology: Topology, index: LegalIndex) -> None:
        self._instance = instance
        self._offers = topology.offers
        self._apart = index.apart
        self._users_of = _user_counts(topology)

    def leaf(self, ops: tuple[int, ...], schemes: frozenset[int], closed: bool) -> Node:
        """The starting node of one op, or of a group that the rules fuse."""
        instance = self._instance
        parts = [self._offers[op] for op in ops]
        writes = frozenset(write.buffer for offers in parts for offer in offers.values() for write in offer.writes)
        reads: dict[int, Footprints] = {}
        for scheme in schemes:
            reads[scheme] = {
                (read.buffer, read.footprint): read.bytes for offers in parts for read in offers[scheme].reads
            }
        if len(ops) > 1:
            reads = {scheme: self._external(found, writes) for scheme, found in reads.items()}
        mask = apart = 0
        for op in ops:
            mask |= 1 << op
            apart |= self._apart[op]
        touched = frozenset(buffer for found in reads.values() for buffer, _ in found)
        shared_schemes = schemes - {ALONE}
        return Node(
            ops=ops,
            mask=mask,
            apart=apart,
            weight=sum(instance.ops[op].weight for op in ops),
            device=instance.ops[min(ops)].device,
            first=min(ops),
            last=max(ops),
            schemes=schemes,
            reads=reads,
            writes=writes,
            uses=touched | writes,
            single_use=self._single_use(touched),
            reduces=any(offer.reduces for offers in parts for offer in offers.values()),
            closed=closed or not shared_schemes,
        )

    def fused(self, one: Node, two: Node, schemes: frozenset[int]) -> Node:
        """The node of the ops of both."""
        writes = one.writes | two.writes
        reads = {scheme: self._external({**one.reads[scheme], **two.reads[scheme]}, writes) for scheme in schemes}
        touched = frozenset(buffer for found in reads.values() for buffer, _ in found)
        return Node(
            ops=tuple(sorted(one.ops + two.ops)),
            mask=one.mask | two.mask,
            apart=one.apart | two.apart,
            weight=one.weight + two.weight,
            device=one.device,
            first=min(one.first, two.first),
            last=max(one.last, two.last),
            schemes=schemes,
            reads=reads,
            writes=writes,
            uses=touched | writes,
            single_use=self._single_use(touched),
            reduces=one.reduces or two.reduces,
            closed=False,
        )

    def _external(self, reads: Footprints, writes: frozenset[int]) -> Footprints:
        """The reads that come from memory: all but those of temporaries that the node makes itself."""
        return {
            key: size
            for key, size in reads.items()
            if key[0] not in writes or self._instance.buffers[key[0]].kind != "temporary"
        }

    def _single_use(self, touched: frozenset[int]) -> frozenset[int]:
        """Sizes of the temporaries read that have one user and are not returned: their memory is free at once."""
        buffers = self._instance.buffers
        return frozenset(
            buffers[number].bytes
            for number in touched
            if buffers[number].kind == "temporary" and not buffers[number].output and self._users_of.get(number) == 1
        )


def _user_counts(index: Topology) -> dict[int, int]:
    """By produced buffer, the number of ops that use it."""
    users: dict[int, set[int]] = {}
    for pairs in index.users:
        for user, buffer in pairs:
            if buffer is not None:
                users.setdefault(buffer, set()).add(user)
    return {buffer: len(ops) for buffer, ops in users.items()}
