"""Presolve: reduce an instance by decisions that some optimal solution satisfies.

A solution that violates a rule can be changed to satisfy it at no more cost, so some optimal solution satisfies all:

- **dominated scheme**: every kernel of scheme s could run in scheme t at no more cost. The offers of s are dropped.
- **joins its consumer**: a group U whose results only group V uses moves into V's kernel.
- **joins its producer**: a group V that reads values only from group U moves into U's kernel.

The kernel that a group leaves must stay connected and never costs more; the kernel that it joins must allow it in every
scheme and size, and grow by no more than the other one saves. Convexity and freedom from cycles follow from "only".
A kernel costs the larger of its memory and compute time, so saved memory time counts in full only in schemes whose
kernels are proven to be memory-bound (``memory_bound``); elsewhere it counts up to the compute time moved.

The result is an Instance again: groups become ``fuse`` rules. Its solutions are solutions of the original one at the
same cost. With some slack, groups move where that costs next to nothing, such as one more read of a row's statistics.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic

from optfuse.problem.cost import access_percent
from optfuse.problem.instance import Instance, Op
from optfuse.problem.op_masks import bits
from optfuse.problem.presolve_moves import Moves, shareable


@dataclass(frozen=True, slots=True)
class Reduced:
    """A reduced instance. Its optimum is above that of the original one by at most ``loss`` picoseconds."""

    problem: Instance
    loss: int = 0


def presolve(
    instance: Instance,
    fed: int = 0,
    used: int = 0,
    deadline: float = math.inf,
    now: Callable[[], float] = monotonic,
    slack: int = 0,
) -> Reduced:
    """Apply all rules until none fires. Instances with variants or several devices come back as they are.

    Where the instance is a block of a larger one, ``fed`` and ``used`` are its ops (as bitmasks) that outsiders feed or
    use. They limit what may move: a kernel must not begin to wait for an outsider that it did not wait for before.
    After ``deadline``, a time of ``now``, no more rules are tried. A group also moves where this costs no more than
    ``slack`` picoseconds; the result says what all such moves may cost together.
    """
    if instance.variants or len({op.device for op in instance.ops}) > 1:
        return Reduced(instance)
    reduced = drop_dominated_schemes(instance)
    pairs, loss = tie_groups(reduced, fed, used, lambda: now() >= deadline, slack)
    rules = replace(reduced.rules, fuse=(*reduced.rules.fuse, *pairs))
    return Reduced(replace(reduced, rules=rules) if pairs else reduced, loss)


def drop_dominated_schemes(instance: Instance) -> Instance:
    """Drop the offers of each scheme whose kernels could all run in one other scheme at no more cost."""
    for scheme in range(1, len(instance.schemes)):
        offering = [op for op in instance.ops if any(offer.scheme == scheme for offer in op.offers)]
        rivals = set(range(1, len(instance.schemes))) - {scheme}
        for op in offering:
            rivals &= {offer.scheme for offer in op.offers}
        better = next((rival for rival in sorted(rivals) if offering and _dominates(instance, rival, scheme)), None)
        if better is not None:
            instance = _without(instance, scheme)
    return instance


def _dominates(instance: Instance, better: int, worse: int) -> bool:
    """Whether each kernel of ``worse`` would be legal and no dearer in ``better``, which the same ops offer."""
    device = instance.devices[instance.ops[0].device]
    shared: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for op in instance.ops:
        offers = {offer.scheme: offer for offer in op.offers}
        if worse not in offers:
            continue
        mine, other = offers[worse], offers[better]
        if mine.reduces or other.reduces or len(mine.reads) != len(other.reads):
            return False
        if {w.buffer: (w.bytes, w.access) for w in mine.writes} != {
            w.buffer: (w.bytes, w.access) for w in other.writes
        }:
            return False
        for before, after in zip(mine.reads, other.reads, strict=True):
            if (before.buffer, before.bytes) != (after.buffer, after.bytes):
                return False
            if access_percent(before.access, device) != access_percent(after.access, device):
                return False
            shared.setdefault((before.buffer, before.footprint), set()).add((after.buffer, after.footprint))
    if any(len(keys) > 1 for keys in shared.values()):
        return False
    return all(better in edge.schemes for edge in instance.edges if worse in edge.schemes)


def _without(instance: Instance, scheme: int) -> Instance:
    def kept(op: Op) -> Op:
        return replace(op, offers=tuple(offer for offer in op.offers if offer.scheme != scheme))

    return replace(
        instance,
        ops=tuple(map(kept, instance.ops)),
        edges=tuple(replace(e, schemes=tuple(s for s in e.schemes if s != scheme)) for e in instance.edges),
    )


def tie_groups(
    instance: Instance, fed: int, used: int, late: Callable[[], bool], slack: int = 0
) -> tuple[list[tuple[int, int]], int]:
    """Pairs of ops that some optimal solution has in one kernel, or one that costs at most so much more."""
    pairs: list[tuple[int, int]] = []
    lost = 0
    if late():
        return pairs, lost
    free = shareable(instance)
    moves = Moves(instance, free, late, slack)
    groups = {op: 1 << op for op in bits(free)}
    waiting = [-head for head in sorted(groups, reverse=True)]
    queued = set(groups)
    while waiting and not late():
        first = -heapq.heappop(waiting)
        queued.discard(first)
        found = _partner(moves, groups, first, fed, used) if first in groups else None
        if found is None:
            continue
        partner, loss = found
        lost += loss
        pairs.append((min(first, partner), max(first, partner)))
        merged = groups.pop(first) | groups.pop(partner)
        head = min(first, partner)
        groups[head] = merged
        for op in bits(merged):
            moves.head[op] = head
        for other in {head, *(moves.head[op] for op in bits(moves.around(merged) & free))} - queued:
            heapq.heappush(waiting, -other)
            queued.add(other)
    return pairs, lost


def _partner(moves: Moves, groups: dict[int, int], first: int, fed: int, used: int) -> tuple[int, int] | None:
    """The group whose kernel this one joins by either rule, and what that costs; None if there is none."""
    group = groups[first]
    consumer = None if group & used else moves.only(moves.users, group)
    if consumer is not None and (loss := moves.joins_consumer(group, groups[consumer])) is not None:
        return consumer, loss
    producer = None if group & fed else moves.only(moves.sources, group)
    if producer is not None and (loss := moves.joins_producer(groups[producer], group)) is not None:
        return producer, loss
    return None
