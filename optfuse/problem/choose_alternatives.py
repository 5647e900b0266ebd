"""Restrict an instance to some alternatives of its variants."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from optfuse.errors import IllegalKernelError
from optfuse.problem.instance import Edge, Instance, Offer, Variant
from optfuse.problem.legality import listed
from optfuse.problem.rules import restricted


def choosing(instance: Instance, wanted: Collection[int]) -> tuple[Instance, tuple[int, ...]]:
    """The instance in which the wanted ops run, and for each of its ops its number in the original instance.

    Alternatives of a wanted op's variant that do not hold it are dropped, with their ops and the buffers that only
    those touch. The wanted ops must be able to run together.

    Raises:
        IllegalKernelError: When a rule ties an op that is left to one that is dropped.
    """
    dropped: set[int] = set()
    variants: list[Variant] = []
    for variant in instance.variants:
        members = {op for alternative in variant.alternatives for op in alternative}
        named = members.intersection(wanted)
        left = tuple(alternative for alternative in variant.alternatives if named.issubset(alternative))
        dropped |= members - {op for alternative in left for op in alternative}
        if len(left) > 1:
            variants.append(replace(variant, alternatives=left))
    for group in (*instance.rules.fuse, *instance.rules.single_kernel):
        if dropped.intersection(group) and not dropped.issuperset(group):
            raise IllegalKernelError(
                f"a rule asks for one kernel of {listed(instance, group)}, which do not all run then"
            )
    kept = tuple(op for op in range(len(instance.ops)) if op not in dropped)
    return _part(instance, kept, tuple(variants)), kept


def _part(instance: Instance, kept: tuple[int, ...], variants: tuple[Variant, ...]) -> Instance:
    local = {op: i for i, op in enumerate(kept)}
    touched = {access.buffer for op in kept for o in instance.ops[op].offers for access in (*o.reads, *o.writes)}
    ever = {access.buffer for op in instance.ops for o in op.offers for access in (*o.reads, *o.writes)}
    buffers = [
        b for b, facts in enumerate(instance.buffers) if b in touched or b not in ever or facts.kind != "temporary"
    ]
    number = {buffer: i for i, buffer in enumerate(buffers)}

    def offer(old: Offer) -> Offer:
        return replace(
            old,
            reads=tuple(replace(read, buffer=number[read.buffer]) for read in old.reads),
            writes=tuple(replace(write, buffer=number[write.buffer]) for write in old.writes),
        )

    def edge(old: Edge) -> Edge:
        buffer = None if old.buffer is None else number[old.buffer]
        return Edge(local[old.src], local[old.dst], buffer, old.schemes)

    facts = [instance.buffers[b] for b in buffers]
    return replace(
        instance,
        buffers=tuple(replace(b, alias=None if b.alias is None else number[b.alias]) for b in facts),
        ops=tuple(replace(instance.ops[op], offers=tuple(map(offer, instance.ops[op].offers))) for op in kept),
        edges=tuple(edge(e) for e in instance.edges if e.src in local and e.dst in local),
        variants=tuple(
            replace(v, alternatives=tuple(tuple(local[op] for op in ops) for ops in v.alternatives)) for v in variants
        ),
        rules=replace(restricted(instance.rules, local), peak_memory=instance.rules.peak_memory),
    )
