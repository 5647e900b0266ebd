"""Validate variants: for every choice of alternatives, each value has a producer that runs."""

from __future__ import annotations

from collections.abc import Iterator

from optfuse.problem.instance import Instance, Op


def check_sources(instance: Instance) -> Iterator[str]:
    """The values whose producers need not run when a consumer does, one line each."""
    if not instance.variants:
        return
    variant_of: dict[int, int] = {}
    for number, variant in enumerate(instance.variants):
        variant_of.update(dict.fromkeys((op for ops in variant.alternatives for op in ops), number))
    producers: dict[tuple[int, int], set[int]] = {}
    for edge in instance.edges:
        if edge.buffer is not None and instance.buffers[edge.buffer].kind == "temporary":
            producers.setdefault((edge.dst, edge.buffer), set()).add(edge.src)
    for (user, buffer), sources in producers.items():
        if any(source not in variant_of for source in sources):
            continue
        sure = False
        for number in {variant_of[source] for source in sources}:
            alternatives = instance.variants[number].alternatives
            beside = [ops for ops in alternatives if variant_of.get(user) != number or user in ops]
            sure = sure or all(sources.intersection(ops) for ops in beside)
        if not sure:
            name = instance.buffers[buffer].name
            yield f"op {instance.ops[user].name!r} takes buffer {name!r} from ops that need not run when it does"


def check_variants(instance: Instance) -> Iterator[str]:
    """The faults of variants, one line each: empty ones, shared ops, buffers that an alternative does not write."""
    owner: dict[int, str] = {}
    for variant in instance.variants:
        where = f"variant {variant.name!r}"
        if not variant.alternatives:
            yield f"{where} has no alternatives"
        members = {op for alternative in variant.alternatives for op in alternative}
        for alternative in variant.alternatives:
            if len(set(alternative)) != len(alternative):
                yield f"{where} names an op twice in one alternative"
        for op in sorted(members):
            if op in owner:
                yield f"op {instance.ops[op].name!r} is in two variants: {owner[op]!r} and {variant.name!r}"
            owner[op] = variant.name
        wanted = _wanted_from(instance, members)
        for alternative in variant.alternatives:
            missing = wanted - {buffer for op in alternative for buffer in writes_always(instance.ops[op])}
            if missing:
                name = instance.buffers[min(missing)].name
                yield f"{where}: alternative {alternative} does not write buffer {name!r}, which others need"


def _wanted_from(instance: Instance, members: set[int]) -> set[int]:
    """The buffers that every alternative of a variant must write: outputs, mutated inputs, values used outside it."""
    wanted = {
        edge.buffer
        for edge in instance.edges
        if edge.src in members and edge.dst not in members and edge.buffer is not None
    }
    for op in members:
        for buffer in writes_always(instance.ops[op]):
            if instance.buffers[buffer].output or instance.buffers[buffer].kind != "temporary":
                wanted.add(buffer)
    return wanted


def writes_always(op: Op) -> set[int]:
    """The buffers that an op writes in every offer."""
    first, *others = op.offers
    always = {write.buffer for write in first.writes}
    for offer in others:
        always.intersection_update([write.buffer for write in offer.writes])
    return always
