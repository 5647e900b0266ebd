"""Decomposition: ops that no legal kernel can hold together are decided apart, and equal parts are decided once.

Two ops are *linked* in a scheme when an inside edge or a common read ties them and the convex hull of the pair breaks
no condition that larger kernels would break too. A legal kernel is connected by links, so it lies within one component
of the links: a *block*. What decides most is convexity: a path through a library call separates its ends.

A block is cut out as an Instance of its own, with names gone and ids renumbered by position: blocks that repeat (the
layers of a model) become equal, which is what the solver looks up. What the rest of the graph does to the block is
kept: values used outside become outputs, and paths through the outside become edges that no scheme allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from optfuse.problem.convexity import kept_apart
from optfuse.problem.cost import topology
from optfuse.problem.instance import ALONE, Buffer, Edge, Instance, Offer, Op, Read, Scheme, Variant, Write
from optfuse.problem.legality import LegalIndex, legal_index
from optfuse.problem.op_masks import bits, common, mask_of, union
from optfuse.problem.rules import restricted
from optfuse.solver.reduce.optional_values import optional_uses
from optfuse.solver.reduce.union_find import Components

#: Readers of one buffer that are tested pair by pair, and tests of one instance.
PAIRWISE_READERS = 16
MAX_TESTS = 1_000_000
#: Blocks of more ops are large: their candidates are not worth listing twice, and each step over them takes long.
LARGE_OPS = 1500
#: Edges between two looks at the clock.
EDGES_PER_CHECK = 256


@dataclass(frozen=True, slots=True)
class Shape:
    """All that matters of a block, without its place in the whole: equal shapes have equal solutions.

    ``fed`` and ``used`` are the ops, as bitmasks, that ops outside the block feed or use. The hash is computed once.
    """

    problem: Instance
    fed: int
    used: int
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Take the hash of all ops now: it is asked for with every look into a table."""
        object.__setattr__(self, "_hash", hash((self.problem, self.fed, self.used)))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class Block:
    """A part of an instance: op ``i`` of the shape is op ``ops[i]`` of the whole, scheme ``j`` is ``schemes[j]``."""

    ops: tuple[int, ...]
    schemes: tuple[int, ...]
    shape: Shape


def find_blocks(instance: Instance, check_time: Callable[[], None] = lambda: None) -> list[tuple[int, ...]]:
    """Partition the ops so that every legal kernel lies within one part, and so do the alternatives of a variant.

    So do an op and its user that need not run: whether the op's kernel writes the value is decided with the variant.

    ``check_time`` is called now and then; what it raises ends the search.
    """
    components = Components(len(instance.ops))
    for variant in instance.variants:
        components.join(op for alternative in variant.alternatives for op in alternative)
    for pair in instance.rules.fuse:
        components.join(pair)
    for group in instance.rules.single_kernel:
        components.join(group)
    for pair in optional_uses(instance):
        components.join(pair)
    for ops in _differing_writers(instance):
        components.join(ops)
    links = _Links(instance)
    for number, edge in enumerate(instance.edges):
        if number % EDGES_PER_CHECK == 0:
            check_time()
        if components.find(edge.src) != components.find(edge.dst) and any(
            links.test(edge.src, edge.dst, scheme) for scheme in edge.schemes
        ):
            components.join((edge.src, edge.dst))
    for scheme, groups in _linked_by_reads(instance).items():
        for ops in groups:
            check_time()
            links.join(ops, scheme, components)
        links.forget()
    return components.groups()


def _differing_writers(instance: Instance) -> list[list[int]]:
    """Groups of ops that must share a block: the writers of one temporary with different users, and these users.

    In a block without its users, one op would seem to write the buffer for those of another.
    """
    index = topology(instance)
    users: dict[int, dict[int, set[int]]] = {}
    for op, offers in enumerate(index.offers):
        for buffer in {write.buffer for offer in offers.values() for write in offer.writes} - index.always:
            users.setdefault(buffer, {})[op] = {user for user, taken in index.users[op] if taken == buffer}
    found: list[list[int]] = []
    for mine in users.values():
        first, *others = mine.values()
        if any(other != first for other in others):
            found.append([*mine, *set[int]().union(*mine.values())])
    return found


def _linked_by_reads(instance: Instance) -> dict[int, list[list[int]]]:
    """By scheme, the ops that a common read or (where kernels need not be connected) the scheme itself may link."""
    meeting: dict[tuple[int, ...], list[int]] = {}
    for number, op in enumerate(instance.ops):
        for offer in op.offers:
            if offer.scheme == ALONE:
                continue
            keys = {(offer.scheme, read.buffer, read.footprint) for read in offer.reads}
            for key in keys if instance.limits.connected else [(offer.scheme,)]:
                meeting.setdefault(key, []).append(number)
    by_scheme: dict[int, list[list[int]]] = {}
    for key, ops in meeting.items():
        if len(ops) > 1:
            by_scheme.setdefault(key[0], []).append(ops)
    return by_scheme


class _Links:
    """Could a kernel of a scheme hold a pair? By conditions that a larger kernel cannot mend."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.index = legal_index(instance)
        self.reach = self.index.reach()
        self.offering = [0] * len(instance.schemes)
        for number, op in enumerate(instance.ops):
            for offer in op.offers:
                self.offering[offer.scheme] |= 1 << number
        self._apart: list[int] | None = None
        self._tests = 0

    def test(self, left: int, right: int, scheme: int) -> bool:
        """Whether nothing forbids a kernel with both, of those conditions."""
        mask = 1 << left | 1 << right
        mask |= self.reach.between(mask)
        instance, limits = self.instance, self.instance.limits
        if mask & ~self.offering[scheme] or mask & self.index.barrier or mask.bit_count() > limits.max_ops:
            return False
        ops = list(bits(mask))
        if len({instance.ops[op].device for op in ops}) > 1:
            return False
        if sum(instance.ops[op].weight for op in ops) > limits.max_weight:
            return False
        return not any(_breaks(self.index, op, mask, scheme) for op in ops)

    def join(self, ops: Sequence[int], scheme: int, components: Components) -> None:
        """Join those of some ops that the test links, directly or through each other.

        Where a great many read the same, nearly all pairs are apart for what lies between, which is known for all of
        them at once. After very many tests the rest counts as linked: blocks may be larger than they need be.
        """
        waiting = mask_of(ops)
        few = len(ops) <= PAIRWISE_READERS
        while waiting:
            first = waiting & -waiting
            waiting ^= first
            frontier = [first.bit_length() - 1]
            while frontier:
                op = frontier.pop()
                for other in bits(waiting if few else waiting & ~self._kept_apart(scheme)[op]):
                    known = components.find(op) == components.find(other)
                    self._tests += not known
                    if known or self._tests > MAX_TESTS or self.test(min(op, other), max(op, other), scheme):
                        components.join((op, other))
                        waiting ^= 1 << other
                        frontier.append(other)

    def forget(self) -> None:
        """Let go of what is known of the scheme in hand."""
        self._apart = None

    def _kept_apart(self, scheme: int) -> list[int]:
        if self._apart is None:
            barred = [0] * len(self.instance.ops)
            for edge in self.instance.edges:
                if scheme not in edge.schemes:
                    barred[edge.src] |= 1 << edge.dst
                    barred[edge.dst] |= 1 << edge.src
            self._apart = kept_apart(self.instance, self.offering[scheme], barred)
        return self._apart


def _breaks(index: LegalIndex, op: int, mask: int, scheme: int) -> bool:
    if index.apart[op] & mask or (index.exact[op] and mask & ~index.exact[op]):
        return True
    return any(mask >> after & 1 and scheme not in schemes for after, schemes in index.successors[op])


def cut_out(instance: Instance, ops: Sequence[int]) -> Block:
    """The block of some ops as an instance of its own, in normal form."""
    ops = tuple(sorted(ops))
    local = {op: i for i, op in enumerate(ops)}
    schemes = _schemes(instance, ops)
    relabel = _Relabel({scheme: i for i, scheme in enumerate(schemes)})
    new_ops = tuple(relabel.op(instance.ops[op], i) for i, op in enumerate(ops))
    edges, used_outside = _inside_edges(instance, local, relabel)
    edges.extend(_outside_paths(instance, ops, local))
    problem = Instance(
        name="block",
        devices=instance.devices,
        schemes=tuple(replace(instance.schemes[s], name=str(i)) for i, s in enumerate(schemes)),
        buffers=tuple(_plain_buffer(instance, b, i, used_outside) for i, b in enumerate(relabel.buffers)),
        ops=new_ops,
        edges=tuple(edges),
        variants=tuple(
            Variant(str(i), tuple(tuple(local[op] for op in alternative) for alternative in variant.alternatives))
            for i, variant in enumerate(
                v for v in instance.variants if any(op in local for ops in v.alternatives for op in ops)
            )
        ),
        limits=instance.limits,
        rules=restricted(instance.rules, local),
    )
    index = topology(instance)
    fed = mask_of(local[op] for op in ops if any(source not in local for source, _ in index.sources[op]))
    used = mask_of(local[op] for op in ops if any(user not in local for user, _ in index.users[op]))
    return Block(ops, schemes, Shape(problem, fed, used))


def _schemes(instance: Instance, ops: Sequence[int]) -> tuple[int, ...]:
    """``ALONE``, then the schemes offered, by extents and then in their own order."""
    found = dict.fromkeys(offer.scheme for op in ops for offer in instance.ops[op].offers)
    found.pop(ALONE, None)

    def extents(scheme: int) -> tuple[int, int, int]:
        facts: Scheme = instance.schemes[scheme]
        return facts.x, facts.r, facts.parallel

    return (ALONE, *sorted(found, key=extents))


@dataclass(slots=True)
class _Relabel:
    """Numbers by first appearance for schemes, buffers and the footprints of each buffer."""

    schemes: dict[int, int]
    buffers: dict[int, int]
    footprints: dict[tuple[int, int], int]

    def __init__(self, schemes: dict[int, int]) -> None:
        self.schemes, self.buffers, self.footprints = schemes, {}, {}

    def buffer(self, buffer: int) -> int:
        return self.buffers.setdefault(buffer, len(self.buffers))

    def footprint(self, buffer: int, footprint: int) -> int:
        return self.footprints.setdefault((buffer, footprint), len(self.footprints))

    def op(self, op: Op, position: int) -> Op:
        ordered = sorted(op.offers, key=lambda offer: self.schemes[offer.scheme])
        offers = tuple(map(self.offer, ordered))
        return Op(str(position), op.kind, offers, op.work, op.device, op.weight, launch_ps=op.launch_ps)

    def offer(self, offer: Offer) -> Offer:
        return Offer(
            self.schemes[offer.scheme],
            tuple(
                Read(self.buffer(read.buffer), read.bytes, read.access, self.footprint(read.buffer, read.footprint))
                for read in offer.reads
            ),
            tuple(Write(self.buffer(write.buffer), write.bytes, write.access) for write in offer.writes),
            offer.full,
            offer.reduces,
        )


def _plain_buffer(instance: Instance, buffer: int, position: int, used_outside: set[int]) -> Buffer:
    """What the price of a kernel depends on, and nothing else."""
    facts = instance.buffers[buffer]
    kind = "temporary" if facts.kind == "temporary" else "input"
    return Buffer(str(position), facts.bytes, kind, output=facts.output or buffer in used_outside)


def _inside_edges(instance: Instance, local: dict[int, int], relabel: _Relabel) -> tuple[list[Edge], set[int]]:
    """The edges between the block's ops, and the buffers that ops outside read from them."""
    outs = topology(instance).outs
    edges: list[Edge] = []
    used_outside: set[int] = set()
    for op in local:
        for edge in (instance.edges[position] for position in outs[op]):
            if edge.dst not in local:
                if edge.buffer is not None:
                    used_outside.add(edge.buffer)
                continue
            buffer = None if edge.buffer is None else relabel.buffer(edge.buffer)
            allowed = tuple(sorted(relabel.schemes[s] for s in edge.schemes if s in relabel.schemes))
            edges.append(Edge(local[op], local[edge.dst], buffer, allowed))
    edges.sort(key=lambda edge: (edge.src, edge.dst, -1 if edge.buffer is None else edge.buffer))
    return edges, used_outside


def _outside_paths(instance: Instance, ops: Sequence[int], local: dict[int, int]) -> list[Edge]:
    """An edge that no scheme allows for every path that leaves the block and comes back, none that follow from others.

    The ops on such a path are not in the block, so no legal kernel holds both of its ends.
    """
    index = legal_index(instance)
    reach = index.reach()
    block = mask_of(ops)
    entered = {op: _entered(index, op, local, block) for op in ops}
    edges: list[Edge] = []
    beyond: dict[int, int] = {}  # what is entered from any op of the block behind an op
    for op in reversed(ops):
        implied = 0
        rest = reach.descendants[op] & block
        while rest:
            after = (rest & -rest).bit_length() - 1
            implied |= entered[after] | beyond[after]
            rest &= ~(reach.descendants[after] | 1 << after)
        beyond[op] = implied
        for target in bits(entered[op] & ~implied):
            if not reach.ancestors[target] & entered[op]:
                edges.append(Edge(local[op], local[target], None, ()))
    return edges


def _entered(index: LegalIndex, op: int, local: Mapping[int, int], block: int) -> int:
    """The ops of the block behind an op of it, along paths that first leave it and are certain to run."""
    outside = [user for user, _ in topology(index.instance).users[op] if user not in local]
    found = 0
    for user in outside:
        if index.standing >> user & 1:
            found |= _reached(index, 1 << user | index.reach().descendants[user], block)
    for options in index.alternatives:
        users = [user for user in outside if any(option >> user & 1 for option in options)]
        if users:
            behind = [mask_of(user for user in users if option >> user & 1) for option in options]
            found |= _reached(index, common(_onward(index, mask) for mask in behind), block)
    return found


def _onward(index: LegalIndex, mask: int) -> int:
    return union(index.reach().onward[op] for op in bits(mask))


def _reached(index: LegalIndex, behind: int, block: int) -> int:
    """The ops of the block among some, and those of its alternatives that directly follow one of these."""
    found = behind & block
    if not index.alternatives:
        return found
    for target in bits(block & ~index.mandatory):
        before = mask_of(source for source, _ in topology(index.instance).sources[target])
        if before & behind:
            found |= 1 << target
    return found
