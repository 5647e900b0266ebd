"""An instance with its variants decided: the ops of one alternative of each, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from optfuse.problem.cost import kernel_cost
from optfuse.problem.instance import Edge, Instance, Op, Rules


@dataclass(frozen=True, slots=True)
class Decided:
    """``instance`` has no variants; its op ``i`` is op ``ops[i]`` of the one that it came from."""

    instance: Instance
    ops: tuple[int, ...]


def decide(instance: Instance, chosen: Sequence[int]) -> Decided:
    """The instance in which alternative ``chosen[v]`` of each variant ``v`` runs."""
    out = {op for variant in instance.variants for alternative in variant.alternatives for op in alternative}
    out -= {op for variant, k in zip(instance.variants, chosen, strict=True) for op in variant.alternatives[k]}
    ops = tuple(op for op in range(len(instance.ops)) if op not in out)
    number = {op: k for k, op in enumerate(ops)}
    edges = tuple(
        Edge(number[edge.src], number[edge.dst], edge.buffer, edge.schemes)
        for edge in instance.edges
        if edge.src in number and edge.dst in number
    )

    def groups(family: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(number[op] for op in ops) for ops in family if all(op in number for op in ops))

    rules = instance.rules
    kept = Rules(
        fuse=tuple((a, b) for a, b in groups(rules.fuse)),
        no_fuse=tuple((a, b) for a, b in groups(rules.no_fuse)),
        single_kernel=groups(rules.single_kernel),
        barrier=tuple(number[op] for op in rules.barrier if op in number),
        peak_memory=rules.peak_memory,
    )
    made = {write.buffer for op in ops for offer in instance.ops[op].offers for write in offer.writes}
    # A temporary that nobody makes any more keeps its number, as nothing.
    buffers = tuple(
        replace(buffer, kind="constant", bytes=0) if buffer.kind == "temporary" and place not in made else buffer
        for place, buffer in enumerate(instance.buffers)
    )
    decided = replace(
        instance, buffers=buffers, ops=tuple(instance.ops[op] for op in ops), edges=edges, variants=(), rules=kept
    )
    return Decided(decided, ops)


def apart(instance: Instance) -> tuple[int, ...]:
    """By variant, the alternative whose ops cost least when each is a kernel of its own."""

    def alone(op: int) -> int:
        return min(kernel_cost(instance, (op,), offer.scheme) for offer in instance.ops[op].offers)

    return tuple(
        min(range(len(variant.alternatives)), key=lambda k, v=variant: (sum(map(alone, v.alternatives[k])), k))
        for variant in instance.variants
    )


def classes(instance: Instance) -> list[list[int]]:
    """Variants that look alike, by what their ops compute, read and write: repeated layers are decided together."""
    found: dict[object, list[int]] = {}
    for number, variant in enumerate(instance.variants):
        look = tuple(tuple(_look(instance.ops[op]) for op in alternative) for alternative in variant.alternatives)
        found.setdefault(look, []).append(number)
    return list(found.values())


def _look(op: Op) -> object:
    """An op without its place: its arithmetic, and the sizes of what it reads and writes."""
    sizes = {
        (tuple(sorted(read.bytes for read in offer.reads)), tuple(sorted(write.bytes for write in offer.writes)))
        for offer in op.offers
    }
    return op.work, tuple(sorted(sizes))
