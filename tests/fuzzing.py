"""Tiny instances with all that the format allows, and what each of them has: the ground on which proofs are tried.

``build`` makes an instance from a random generator; ``features`` says what is in one, by looking at it. A test counts
that every feature, and every pair of features, occurs.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from itertools import product

from hypothesis import strategies as st

from optfuse.errors import InvalidInstanceError
from optfuse.problem.instance import (
    ALONE,
    Buffer,
    Edge,
    Instance,
    Limits,
    Offer,
    Op,
    Read,
    Rules,
    Scheme,
    Variant,
    Work,
    Write,
)
from optfuse.problem.legality import legal_index
from optfuse.problem.validate import validate
from optfuse.solver.reduce.optional_values import optional_uses
from tests.strategies import DEVICE

MIB = 1 << 20
SCHEMES = (
    Scheme("alone", 1),
    Scheme("rows", 64, 128, parallel=16),
    Scheme("flat", 64 * 128, 1, parallel=64 * 128),
    Scheme("looped", 8, 1024, parallel=8),
)
#: Rules often leave no schedule: they are rarer.
RULES = ("fuse", "no_fuse", "single_kernel", "barrier")
SIZES = (64, 4096, 1 << 18, MIB, 3 * MIB)
#: What an instance may have, each decided by a coin of its own; what has nothing to decide just happens.
SWITCHES = (
    "alternatives",
    "optional_use",
    "alias",
    "donated",
    "mutated",
    "several_writers",
    "fixed",
    "no_bytes",
    "two_devices",
    "fuse",
    "no_fuse",
    "single_kernel",
    "barrier",
    "order_edge",
    "never_together",
    "alone_or_not",
    "reads_by_scheme",
    "footprints",
    "places",
    "access",
    "reduces",
    "outer",
    "recompute",
    "max_ops",
    "max_weight",
    "unconnected",
    "ramp",
    "l2_writes",
    "compute",
)
DEVICES = (
    replace(DEVICE, l2_bytes=2 << 20),
    replace(DEVICE, launch_ps=50_000, l2_bytes=1 << 20),
    # Memory as fast as the cache: prices may not tell the two apart by their rates.
    replace(DEVICE, launch_ps=300_000, l2_ps_per_mib=DEVICE.dram_ps_per_mib, l2_bytes=2 << 20),
)


@dataclass
class _Draft:
    """An instance under construction. ``makers[b]`` are ops of which, for every choice, one that runs makes ``b``."""

    rng: random.Random
    on: set[str]
    buffers: list[Buffer] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    variants: list[Variant] = field(default_factory=list)
    makers: dict[int, list[int]] = field(default_factory=dict)
    private: set[int] = field(default_factory=set)

    def flip(self, switch: str, chance: float = 0.5) -> bool:
        return switch in self.on and self.rng.random() < chance

    def buffer(self, kind: str = "temporary", **facts: object) -> int:
        size = 0 if self.flip("no_bytes", 0.4) else self.rng.choice(SIZES)
        number = len(self.buffers)
        self.buffers.append(Buffer(f"b{number}", size, kind, **facts))  # type: ignore[arg-type]
        return number

    def inputs(self) -> list[int]:
        return [n for n, b in enumerate(self.buffers) if b.kind != "temporary" and b.alias is None]

    def public(self) -> list[int]:
        return [n for n in range(len(self.buffers)) if n not in self.private]


def build(rng: random.Random, most: int = 6) -> Instance:
    """A valid instance of one to ``most`` ops; its rules may leave no schedule."""
    draft = _Draft(rng, {switch for switch in SWITCHES if rng.random() < (0.12 if switch in RULES else 0.35)})
    for _ in range(rng.randint(1, 3)):
        kind = rng.choice(["input", "input", "constant"])
        draft.buffer(kind, donated=kind == "input" and draft.flip("donated", 0.7))
    count = rng.randint(1, most)
    while len(draft.ops) < count:
        room = count - len(draft.ops)
        if room >= 2 and draft.flip("alternatives", 0.7):
            _add_variant(draft, room)
        else:
            target = _target(draft)
            op = _add_op(draft, _sources(draft, target), [target])
            draft.makers.setdefault(target, []).append(op)
    _add_order(draft)
    instance = _with_rules(draft, _plain(draft))
    if rng.random() < 0.25:
        dearer = [rng.choice((0, 40_000, 1_500_000)) for _ in instance.ops]
        ops = tuple(replace(op, launch_ps=more) for op, more in zip(instance.ops, dearer, strict=True))
        instance = replace(instance, ops=ops)
    return instance


def _plain(draft: _Draft) -> Instance:
    rng, on = draft.rng, draft.on
    devices = [
        replace(
            device,
            name=f"d{k}",
            ramp_ps=rng.choice([1000, 700_000]) if "ramp" in on else 0,
            l2_write_ps_per_mib=300_000 if "l2_writes" in on else 0,
        )
        for k, device in enumerate(rng.sample(DEVICES, 2 if "two_devices" in on else 1))
    ]
    limits = Limits(
        max_ops=rng.choice([1, 2, 3]) if "max_ops" in on else 64,
        max_weight=rng.choice([1, 3, 4]) if "max_weight" in on else 1 << 30,
        connected="unconnected" not in on,
    )
    return Instance(
        name="fuzzed",
        devices=tuple(devices),
        schemes=SCHEMES,
        buffers=tuple(draft.buffers),
        ops=tuple(draft.ops),
        edges=tuple(draft.edges),
        variants=tuple(draft.variants),
        limits=limits,
    )


def _target(draft: _Draft) -> int:
    """What an op writes: something new, an input, what another op writes already, or a part of an input."""
    rng = draft.rng
    writable = [n for n in draft.inputs() if draft.buffers[n].kind == "input"]
    if writable and draft.flip("mutated", 0.3):
        return rng.choice(writable)
    written = [n for n in draft.makers if draft.buffers[n].kind == "temporary"]
    if written and draft.flip("several_writers", 0.4):
        return rng.choice(written)
    output = rng.random() < 0.35
    if draft.flip("alias", 0.5):
        root = rng.choice(draft.inputs())
        number = draft.buffer(output=output, alias=root)
        draft.buffers[number] = replace(draft.buffers[number], bytes=draft.buffers[root].bytes)
        return number
    return draft.buffer(output=output, fixed=draft.flip("fixed", 0.4))


def _sources(draft: _Draft, target: int | None = None) -> list[int]:
    public = [number for number in draft.public() if number != target]
    return draft.rng.sample(public, min(len(public), draft.rng.randint(0, 2)))


def _add_variant(draft: _Draft, room: int) -> None:
    """Two alternatives or three: one op, two in a row, two that share an op; or one that is nothing at all."""
    rng = draft.rng
    owed = rng.random() < 0.7
    target = _target(draft) if owed else None
    writes = [] if target is None else [target]
    common = _sources(draft, target)
    alternatives: list[tuple[int, ...]] = []
    first = _add_op(draft, common, writes)
    made = [first]
    alternatives.append((first,))
    room -= 1
    shape = rng.choice(["single", "row", "shared", "nothing", "single"])
    sources = _sources(draft, target) if "optional_use" in draft.on else common
    if shape == "row" and room >= 2:
        part = draft.buffer()
        draft.private.add(part)
        stage = _add_op(draft, sources, [part])
        last = _add_op(draft, [part], writes, {part: [stage]})
        alternatives.append((stage, last))
        made.append(last)
    elif shape == "shared" and room >= 2:
        side = _add_op(draft, sources, [])
        other = _add_op(draft, common, writes)
        alternatives = [(first, side), (side, other)] if rng.random() < 0.5 else [(first, side), (other,)]
        made.append(other)
    elif shape == "nothing" and not owed:
        alternatives.insert(rng.randint(0, 1), ())
    else:
        other = _add_op(draft, sources, writes)
        alternatives.append((other,))
        made.append(other)
    if target is not None:
        draft.makers.setdefault(target, []).extend(made)
    draft.variants.append(Variant(f"v{len(draft.variants)}", tuple(alternatives)))


def _add_op(draft: _Draft, sources: list[int], targets: list[int], makers: dict[int, list[int]] | None = None) -> int:
    rng = draft.rng
    library = rng.random() < 0.15
    offered = [ALONE] if library else sorted(rng.sample((1, 2, 3), rng.choice([1, 2, 2, 3])))
    if not library and draft.flip("alone_or_not", 0.6):
        offered = [ALONE, *offered]
    number = len(draft.ops)
    draft.ops.append(
        Op(
            name=f"op{number}",
            kind="library" if library else "loop",
            offers=tuple(_offer(draft, scheme, sources, targets) for scheme in offered),
            work=Work(fp32=rng.choice([1 << 12, 1 << 25]), special=1 << 14) if draft.flip("compute") else Work(),
            device=1 if draft.flip("two_devices") else 0,
            weight=rng.randint(0, 3),
            recompute=not library and draft.flip("recompute", 0.8),
        )
    )
    for source in sources:
        for maker in (makers or draft.makers).get(source, []):
            if draft.buffers[source].kind == "temporary" or rng.random() < 0.8:
                _add_edge(draft, maker, number, source)
    return number


def _offer(draft: _Draft, scheme: int, sources: list[int], targets: list[int]) -> Offer:
    rng = draft.rng

    def access() -> str:
        return rng.choice(["strided", "broadcast", "gather", "column"]) if draft.flip("access") else "contiguous"

    reads: list[Read] = []
    for source in sources:
        if draft.flip("reads_by_scheme", 0.4):
            continue
        size = draft.buffers[source].bytes
        footprint = rng.randint(0, 1) if "footprints" in draft.on else 0
        reads.append(Read(source, size, access(), footprint, int(draft.flip("places"))))  # type: ignore[arg-type]
        if draft.flip("footprints", 0.2):
            reads.append(Read(source, size // 2, access(), 1 - footprint))  # type: ignore[arg-type]
    writes = [
        Write(target, draft.buffers[target].bytes, access(), int(draft.flip("places", 0.7)))  # type: ignore[arg-type]
        for target in targets
    ]
    reduces = SCHEMES[scheme].r > 1 and draft.flip("reduces", 0.5)
    return Offer(scheme, tuple(reads), tuple(writes), full=reduces or not draft.flip("outer", 0.4), reduces=reduces)


def _add_edge(draft: _Draft, src: int, dst: int, buffer: int | None) -> None:
    both = {o.scheme for o in draft.ops[src].offers} & {o.scheme for o in draft.ops[dst].offers} - {ALONE}
    allowed = [scheme for scheme in sorted(both) if draft.rng.random() < 0.85]
    draft.edges.append(Edge(src, dst, buffer, () if draft.flip("never_together", 0.3) else tuple(allowed)))


def _add_order(draft: _Draft) -> None:
    for dst in range(1, len(draft.ops)):
        if draft.flip("order_edge", 0.4):
            _add_edge(draft, draft.rng.randrange(dst), dst, None)


def _with_rules(draft: _Draft, instance: Instance) -> Instance:
    """Rules on any ops; those that contradict each other in the text are dropped."""
    rng, count = draft.rng, len(instance.ops)

    def ops(size: int) -> tuple[int, ...]:
        return tuple(rng.sample(range(count), min(size, count)))

    kinds = {
        "fuse": lambda: Rules(fuse=(ops(2),)) if count > 1 else Rules(),
        "no_fuse": lambda: Rules(no_fuse=(ops(2),)) if count > 1 else Rules(),
        "single_kernel": lambda: Rules(single_kernel=(ops(rng.randint(1, 3)),)),
        "barrier": lambda: Rules(barrier=ops(1)),
    }
    for kind, make in kinds.items():
        if kind not in draft.on:
            continue
        one = getattr(make(), kind)
        ruled = replace(instance, rules=replace(instance.rules, **{kind: one}))
        try:
            validate(ruled)
        except InvalidInstanceError:
            continue
        instance = ruled
    validate(instance)
    return instance


def fuzzed(most: int = 6) -> st.SearchStrategy[Instance]:
    """Instances of one to ``most`` ops."""
    return st.builds(lambda seed: build(random.Random(seed), most), st.integers(0, 1 << 40))


def features(instance: Instance) -> set[str]:
    """What an instance has, of all that the format allows."""
    found = _buffer_features(instance) | _op_features(instance) | _variant_features(instance)
    rules, limits = instance.rules, instance.limits
    found |= {name for name in ("fuse", "no_fuse", "single_kernel", "barrier") if getattr(rules, name)}
    facts = {
        "two_devices": len({op.device for op in instance.ops}) > 1,
        "ramp": any(device.ramp_ps for device in instance.devices),
        "l2_writes": any(device.l2_write_ps_per_mib for device in instance.devices),
        "max_ops": limits.max_ops < len(instance.ops),
        "max_weight": limits.max_weight < sum(op.weight for op in instance.ops),
        "unconnected": not limits.connected,
        "order_edge": any(edge.buffer is None for edge in instance.edges),
        "never_together": any(not edge.schemes for edge in instance.edges),
    }
    return found | {name for name, here in facts.items() if here}


def _buffer_features(instance: Instance) -> set[str]:
    written: dict[int, set[int]] = {}
    read: set[int] = set()
    for number, op in enumerate(instance.ops):
        for offer in op.offers:
            read.update(access.buffer for access in offer.reads)
            for write in offer.writes:
                written.setdefault(write.buffer, set()).add(number)
    pairs = list(enumerate(instance.buffers))
    facts = {
        "alias": any(b.alias is not None for b in instance.buffers),
        "donated": any(b.donated for b in instance.buffers),
        "unused_donated": any(b.donated and n not in read and n not in written for n, b in pairs),
        "mutated": any(b.kind != "temporary" and n in written for n, b in pairs),
        "several_writers": any(len(ops) > 1 for ops in written.values()),
        "fixed": any(b.fixed for b in instance.buffers),
        "no_bytes": any(not b.bytes for b in instance.buffers),
        "output": any(b.output for b in instance.buffers),
        "constant": any(b.kind == "constant" for b in instance.buffers),
    }
    return {name for name, here in facts.items() if here}


def _op_features(instance: Instance) -> set[str]:
    found: set[str] = set()
    for op in instance.ops:
        offers = {offer.scheme: offer for offer in op.offers}
        reads = [read for offer in op.offers for read in offer.reads]
        facts = {
            "library": op.kind == "library",
            "recompute": op.recompute,
            "compute": bool(op.work.fp32),
            "alone_or_not": ALONE in offers and len(offers) > 1,
            "reads_by_scheme": len({frozenset(read.buffer for read in offer.reads) for offer in op.offers}) > 1,
            "footprints": any(read.footprint for read in reads),
            "places": any(read.place for read in reads),
            "access": any(read.access != "contiguous" for read in reads),
            "reduces": any(offer.reduces for offer in op.offers),
            "looped": any(o.reduces and SCHEMES[s].r > DEVICE.persistent_elements for s, o in offers.items()),
            "outer": any(not offer.full for offer in op.offers),
            "heavy": op.weight > instance.limits.max_weight,
            "launch": bool(op.launch_ps),
        }
        found |= {name for name, here in facts.items() if here}
    return found


def _variant_features(instance: Instance) -> set[str]:
    found = {"alternatives"} if instance.variants else set()
    if optional_uses(instance):
        found.add("optional_use")
    if len(instance.variants) > 1:
        found.add("two_variants")
    for variant in instance.variants:
        if () in variant.alternatives:
            found.add("empty_alternative")
        if any(set(a) & set(b) for a, b in product(variant.alternatives, repeat=2) if a != b):
            found.add("shared_alternatives")
    index = legal_index(instance)
    if any(index.rivals[edge.src] >> edge.dst & 1 for edge in instance.edges):
        found.add("edge_of_rivals")
    return found
