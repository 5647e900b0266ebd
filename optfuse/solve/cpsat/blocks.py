"""Decomposition: ops that no legal kernel can hold together are decided apart, and equal parts are decided once.

Two ops are *linked* in a scheme when an inside edge or a common read ties them and the convex hull of the pair breaks
no condition that larger kernels would break too. A legal kernel is connected by links, so it lies within one component
of the links: a *block*. What decides most is convexity: a path through a library call separates its ends.

A block is cut out as an Instance of its own, with names gone and ids renumbered by position: blocks that repeat (the
layers of a model) become equal, which is what the solver looks up. What the rest of the graph does to the block is
kept: values used outside become outputs, and paths through the outside become edges that no scheme allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from optfuse.problem.cost import topology
from optfuse.problem.instance import ALONE, Buffer, Edge, Instance, Offer, Op, Read, Scheme, Variant, Write
from optfuse.problem.legality import LegalIndex, bits, legal_index, mask_of
from optfuse.problem.rules import restricted
from optfuse.solve.cpsat.components import Components


@dataclass(frozen=True, slots=True)
class Shape:
    """All that matters of a block, without its place in the whole: equal shapes have equal solutions.

    ``fed`` and ``used`` are the ops, as bitmasks, that ops outside the block feed or use.
    """

    problem: Instance
    fed: int
    used: int


@dataclass(frozen=True, slots=True)
class Block:
    """A part of an instance: op ``i`` of the shape is op ``ops[i]`` of the whole, scheme ``j`` is ``schemes[j]``."""

    ops: tuple[int, ...]
    schemes: tuple[int, ...]
    shape: Shape


def find_blocks(instance: Instance) -> list[tuple[int, ...]]:
    """Partition the ops so that every legal kernel lies within one part, and so do the alternatives of a variant."""
    components = Components(len(instance.ops))
    for variant in instance.variants:
        components.join(op for alternative in variant.alternatives for op in alternative)
    for pair in instance.rules.fuse:
        components.join(pair)
    for group in instance.rules.single_kernel:
        components.join(group)
    linked = _link_test(instance)
    for left, right, schemes in _ties(instance):
        if components.find(left) != components.find(right) and any(linked(left, right, s) for s in schemes):
            components.join((left, right))
    return components.groups()


def _ties(instance: Instance) -> Iterator[tuple[int, int, Iterable[int]]]:
    """Pairs that an edge, a common read or (where kernels need not be connected) a common scheme may link."""
    for edge in instance.edges:
        if edge.schemes:
            yield edge.src, edge.dst, edge.schemes
    meeting: dict[tuple[int, ...], list[int]] = {}
    for number, op in enumerate(instance.ops):
        for offer in op.offers:
            if offer.scheme == ALONE:
                continue
            keys = {(offer.scheme, read.buffer, read.footprint) for read in offer.reads}
            for key in keys if instance.limits.connected else [(offer.scheme,)]:
                meeting.setdefault(key, []).append(number)
    for key, ops in meeting.items():
        for position, right in enumerate(ops):
            for left in ops[:position]:
                yield left, right, key[:1]


def _link_test(instance: Instance) -> Callable[[int, int, int], bool]:
    """The test whether a kernel of a scheme could hold a pair: conditions that a larger kernel cannot mend."""
    index = legal_index(instance)
    reach = index.reach()
    limits = instance.limits
    offering = [0] * len(instance.schemes)
    for number, op in enumerate(instance.ops):
        for offer in op.offers:
            offering[offer.scheme] |= 1 << number

    def linked(left: int, right: int, scheme: int) -> bool:
        mask = 1 << left | 1 << right
        mask |= reach.between(mask)
        if mask & ~offering[scheme] or mask & index.barrier or mask.bit_count() > limits.max_ops:
            return False
        ops = list(bits(mask))
        if len({instance.ops[op].device for op in ops}) > 1:
            return False
        if sum(instance.ops[op].weight for op in ops) > limits.max_weight:
            return False
        return not any(_breaks(index, op, mask, scheme) for op in ops)

    return linked


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
            for i, variant in enumerate(v for v in instance.variants if v.alternatives[0][0] in local)
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
        return Op(
            str(position), op.kind, tuple(map(self.offer, ordered)), op.work, op.device, op.weight, recompute=False
        )

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
    """The edges between the block's ops, and the buffers that somebody outside takes from them."""
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
    users = topology(instance).users
    block = mask_of(ops)
    entered: dict[int, int] = {}
    for op in ops:
        found = 0
        for user, _ in users[op]:
            if user not in local and index.mandatory >> user & 1:
                found |= _reached(index, user, block)
        entered[op] = found
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


def _reached(index: LegalIndex, op: int, block: int) -> int:
    """The ops of the block behind an op outside it, along paths that are certain to run."""
    reach = index.reach()
    found = reach.descendants[op] & block
    if not index.alternatives:
        return found
    for target in bits(block & ~index.mandatory):
        before = mask_of(source for source, _ in topology(index.instance).sources[target])
        if before & (reach.descendants[op] | 1 << op):
            found |= 1 << target
    return found
