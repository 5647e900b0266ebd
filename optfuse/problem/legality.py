"""Legality of kernels for the solvers: convexity, connectivity and the other conditions, on bitmasks of ops.

The checker shares no code with this module.

A kernel is legal when

1. each of its ops offers the scheme, and a kernel of scheme ``ALONE`` holds one op;
2. all ops are on one device;
3. no two ops belong to different alternatives of a variant;
4. every edge inside allows the scheme;
5. the user's rules hold: ``barrier``, ``no_fuse``, ``fuse`` (no kernel holds one op of the pair without the other),
   ``single_kernel`` (a kernel that holds an op of the set is exactly the set);
6. a kernel of several ops keeps ``max_ops`` and ``max_weight`` (one op alone is always allowed);
7. the set is connected, if ``Limits.connected``: by inside edges or by reads of a common footprint;
8. the set is convex. A path counts if it is there whenever the kernel runs, and passes an op that then runs: of no
   variant, of the alternatives that the kernel's own ops choose, or of variants of single ops that follow and precede
   the same ops, of which the first stands for any. It may also pass variants each of whose alternatives leads on. Paths
   that depend on other choices appear as cycles between kernels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal

from optfuse.problem.instance import ALONE, Instance
from optfuse.problem.instance_cache import per_instance
from optfuse.problem.op_masks import bits, common, mask_of, union
from optfuse.problem.reach import Reach

#: The most ops that a message names.
LISTED = 8

RefusalCode = Literal["scheme", "index", "device", "limit", "rule", "variant", "connection", "path"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A condition that a kernel violates, in words, and the ops to blame.

    The code: an op does not offer the scheme; an edge is not allowed in it (by how the two index the value); devices;
    size or weight; a rule of the user's; alternatives of one variant; nothing links the ops; a path leaves and returns.
    """

    code: RefusalCode
    reason: str
    ops: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LegalIndex:
    """An index of an instance for legality, by op.

    ``successors[u]`` are pairs (v, schemes); ``footprints[u][scheme]`` the (buffer, footprint) read there, and its keys
    are the schemes offered. ``apart[u]`` may never share a kernel with u, and of these ``rivals[u]`` never even run
    with it; ``together[u]`` must. ``exact[u]`` is the one kernel that may hold u, or 0. ``mandatory`` are the ops of no
    variant; ``standing`` are these and the first ops of variants whose alternatives lie on the same paths.
    """

    instance: Instance
    successors: tuple[tuple[tuple[int, frozenset[int]], ...], ...]
    neighbours: tuple[int, ...]
    footprints: tuple[dict[int, frozenset[tuple[int, int]]], ...]
    apart: tuple[int, ...]
    rivals: tuple[int, ...]
    together: tuple[int, ...]
    exact: tuple[int, ...]
    barrier: int
    mandatory: int
    standing: int
    alternatives: tuple[tuple[int, ...], ...]
    reaches: dict[int, Reach] = field(default_factory=dict)

    def certain(self, mask: int) -> int:
        """Ops that run whenever a kernel of the ops of ``mask`` does."""
        active = self.mandatory
        for options in self.alternatives:
            chosen = [option for option in options if mask & union(options) & ~option == 0]
            if mask & union(options):
                active |= common(chosen)
        return active | mask

    def reach(self, mask: int = 0) -> Reach:
        """Reachability along the ops that are certain to run when ``mask`` does."""
        active = self.certain(mask) if self.alternatives else self.mandatory
        for options in self.alternatives:
            if options[0] & self.standing and not mask & union(options):
                active |= options[0]
        found = self.reaches.get(active)
        if found is None:
            found = self.reaches[active] = Reach.of(self.instance, active)
        return found


@per_instance
def legal_index(instance: Instance) -> LegalIndex:
    """Index an instance for legality; remembered by identity."""
    count = len(instance.ops)
    successors: list[list[tuple[int, frozenset[int]]]] = [[] for _ in range(count)]
    neighbours = [0] * count
    sets = {schemes: frozenset(schemes) for schemes in {edge.schemes for edge in instance.edges}}
    for edge in instance.edges:
        successors[edge.src].append((edge.dst, sets[edge.schemes]))
        neighbours[edge.src] |= 1 << edge.dst
        neighbours[edge.dst] |= 1 << edge.src
    footprints = tuple(
        {offer.scheme: frozenset([(read.buffer, read.footprint) for read in offer.reads]) for offer in op.offers}
        for op in instance.ops
    )
    apart, rivals, together, exact = [0] * count, [0] * count, [0] * count, [0] * count
    for left, right in instance.rules.no_fuse:
        apart[left] |= 1 << right
        apart[right] |= 1 << left
    for left, right in instance.rules.fuse:
        together[left] |= 1 << right
        together[right] |= 1 << left
    for group in instance.rules.single_kernel:
        for op in group:
            exact[op] = mask_of(group)
    alternatives = tuple(tuple(mask_of(ops) for ops in variant.alternatives) for variant in instance.variants)
    mandatory = (1 << count) - 1
    for options in alternatives:
        mandatory &= ~union(options)
        for op in bits(union(options)):
            rivals[op] = union(options) & ~union(option for option in options if option >> op & 1)
            apart[op] |= rivals[op]
    twins = mask_of(ops[0] for ops in twin_alternatives(instance))
    return LegalIndex(
        instance,
        tuple(map(tuple, successors)),
        tuple(neighbours),
        footprints,
        tuple(apart),
        tuple(rivals),
        tuple(together),
        tuple(exact),
        mask_of(instance.rules.barrier),
        mandatory,
        mandatory | twins,
        alternatives,
    )


def twin_alternatives(instance: Instance) -> list[tuple[int, ...]]:
    """The variants of single ops that all follow the same ops and precede the same ops: these ops."""
    found = [
        tuple(op for (op,) in variant.alternatives)
        for variant in instance.variants
        if all(len(ops) == 1 for ops in variant.alternatives)
    ]
    before: dict[int, set[int]] = {op: set() for ops in found for op in ops}
    after: dict[int, set[int]] = {op: set() for ops in found for op in ops}
    for edge in instance.edges:
        if edge.dst in before:
            before[edge.dst].add(edge.src)
        if edge.src in after:
            after[edge.src].add(edge.dst)
    return [ops for ops in found if all(before[op] == before[ops[0]] and after[op] == after[ops[0]] for op in ops)]


def is_legal(instance: Instance, ops: Collection[int], scheme: int) -> bool:
    """Whether some ops may be one kernel in a scheme."""
    return _refusal(legal_index(instance), ops, mask_of(ops), scheme) is None


def refusal(instance: Instance, ops: Collection[int], scheme: int) -> Refusal | None:
    """The first condition that a kernel violates, or None when it is legal."""
    return _refusal(legal_index(instance), ops, mask_of(ops), scheme)


def is_legal_but_for_paths(instance: Instance, ops: Collection[int], scheme: int) -> bool:
    """Whether some ops may be one kernel if convexity does not count, since ops may be recomputed elsewhere."""
    index = legal_index(instance)
    return _refusal_but_for_paths(index, ops, mask_of(ops), scheme) is None


def why_illegal(instance: Instance, ops: Collection[int], scheme: int) -> str | None:
    """One line that names the ops and the violated condition, or None when the kernel is legal."""
    found = refusal(instance, ops, scheme)
    return None if found is None else f"{found.reason}: {listed(instance, found.ops)}"


def listed(instance: Instance, ops: Collection[int]) -> str:
    """The names of some ops for a one-line message: the first ones, and the number of others."""
    names = [instance.ops[op].name for op in ops]
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def common_schemes(instance: Instance, ops: Iterable[int]) -> tuple[int, ...]:
    """The schemes that every one of the ops offers, ascending; ``ALONE`` among them only for a single op."""
    index = legal_index(instance)
    members = list(ops)
    shared = set(index.footprints[members[0]])
    for op in members[1:]:
        shared &= index.footprints[op].keys()
    if len(members) > 1:
        shared.discard(ALONE)
    return tuple(sorted(shared))


def is_connected(index: LegalIndex, mask: int, scheme: int) -> bool:
    """Whether the ops are connected by inside edges or by reads of a common footprint in the scheme."""
    return component(index, mask, scheme) == mask


def component(index: LegalIndex, mask: int, scheme: int) -> int:
    """The connected part of ``mask`` that holds its first op; every op of it offers the scheme."""
    start = mask & -mask
    part, frontier, rest = start, start, mask ^ start
    readers: dict[tuple[int, int], int] | None = None
    while frontier:
        touched = 0
        for op in bits(frontier):
            touched |= index.neighbours[op]
        if not touched & rest and rest:
            if readers is None:
                readers = {}
                for op in bits(mask):
                    for key in index.footprints[op][scheme]:
                        readers[key] = readers.get(key, 0) | 1 << op
            for op in bits(part):
                for key in index.footprints[op][scheme]:
                    touched |= readers[key]
        frontier = touched & rest
        part |= frontier
        rest &= ~frontier
    return part


def _refusal(index: LegalIndex, ops: Collection[int], mask: int, scheme: int) -> Refusal | None:
    """The first violated condition and the ops to blame. The cheap tests come first."""
    found = _refusal_but_for_paths(index, ops, mask, scheme)
    if found is None and mask & mask - 1:
        between = index.reach(mask).between(mask)
        if between:
            return Refusal("path", "a path leaves the kernel and comes back through", tuple(bits(between)))
    return found


def _refusal_but_for_paths(index: LegalIndex, ops: Collection[int], mask: int, scheme: int) -> Refusal | None:
    """The first violated condition other than convexity, and the ops to blame."""
    if not mask:
        return Refusal("scheme", "a kernel holds at least one op", ())
    for op in ops:
        if scheme not in index.footprints[op]:
            return Refusal("scheme", f"scheme {index.instance.schemes[scheme].name} is not offered by", (op,))
    if not mask & mask - 1:
        return _broken_rule(index, ops, mask)
    found = _broken_limit(index, ops, scheme) or _broken_edge(index, ops, mask, scheme)
    if found is None:
        found = _broken_rule(index, ops, mask)
    if found is not None:
        return found
    if index.instance.limits.connected:
        part = component(index, mask, scheme)
        if part != mask:
            culprits = (next(bits(part)), *bits(mask & ~part))
            return Refusal("connection", "nothing links the first of these to the others", culprits)
    return None


def _broken_limit(index: LegalIndex, ops: Collection[int], scheme: int) -> Refusal | None:
    """The refusal of too many or too heavy ops, or of ops of several devices."""
    instance = index.instance
    if scheme == ALONE:
        return Refusal("scheme", "ops that run alone cannot share a kernel", tuple(ops))
    if len(ops) > instance.limits.max_ops:
        return Refusal("limit", f"more than {instance.limits.max_ops} ops in one kernel", tuple(ops))
    if sum(instance.ops[op].weight for op in ops) > instance.limits.max_weight:
        return Refusal("limit", f"weight above {instance.limits.max_weight} in one kernel", tuple(ops))
    if len({instance.ops[op].device for op in ops}) > 1:
        return Refusal("device", "ops of different devices in one kernel", tuple(ops))
    return None


def _broken_edge(index: LegalIndex, ops: Iterable[int], mask: int, scheme: int) -> Refusal | None:
    """The first inside edge that the scheme does not allow."""
    for op in ops:
        for after, schemes in index.successors[op]:
            if mask >> after & 1 and scheme not in schemes:
                name = index.instance.schemes[scheme].name
                return Refusal("index", f"the edge between these is not allowed inside scheme {name}", (op, after))
    return None


def _broken_rule(index: LegalIndex, ops: Iterable[int], mask: int) -> Refusal | None:
    """The first of the user's rules, or of the variants' exclusions, that a kernel breaks."""
    if mask & index.barrier and mask & mask - 1:
        return Refusal("rule", "a barrier op stays alone", tuple(bits(mask & index.barrier)))
    for op in ops:
        if mask & index.rivals[op]:
            return Refusal(
                "variant", "alternatives of one variant never both run", (op, *bits(mask & index.rivals[op]))
            )
        if mask & index.apart[op]:
            return Refusal("rule", "these may not share a kernel (no_fuse)", (op, *bits(mask & index.apart[op])))
        if index.together[op] & ~mask:
            return Refusal("rule", "these must share a kernel (fuse)", (op, *bits(index.together[op] & ~mask)))
        if index.exact[op] and index.exact[op] != mask:
            reason = "these must be a kernel of their own (single_kernel)"
            return Refusal("rule", reason, tuple(bits(index.exact[op])))
    return None
