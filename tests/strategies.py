"""Hypothesis generators of small, valid fusion problems: the ground on which solvers are compared.

They reach what hand-written examples miss: quotient cycles between convex kernels, sets that are not convex, looped
reductions that read twice, shared and separate footprints, edges allowed in some schemes only, library calls, order
edges, alternatives, several devices' worth of odd sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st

from optfuse.problem.instance import (
    ALONE,
    AccessClass,
    Buffer,
    Device,
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

DEVICE = Device(
    name="tiny",
    launch_ps=2_000_000,
    dram_ps_per_mib=1_000_000,
    l2_ps_per_mib=250_000,
    l2_bytes=4 << 20,
    fp32_ps_per_gop=40_000_000,
    special_ps_per_gop=300_000_000,
    tensor_ps_per_gop=4_000_000,
    atomic_ps_per_gop=900_000_000,
    saturating_programs=64,
    persistent_elements=128,
    memory_bytes=1 << 30,
)

SCHEMES = (
    Scheme("alone", 1),
    Scheme("rows", 64, 128, parallel=64),
    Scheme("flat", 64 * 128, 1, parallel=64 * 128),
    Scheme("looped", 8, 1024, parallel=8),
)
SHARED = tuple(range(1, len(SCHEMES)))
SIZES = (0, 4, 4096, 1 << 18, 1 << 20, 3 << 20)


def share(examples: int) -> int:
    """How many of so many examples to draw: all with ``--hypothesis-profile=nightly``, else an eighth."""
    return examples if settings.default.max_examples >= 100 else max(1, examples // 8)


@dataclass
class _Draft:
    """An instance under construction; op and buffer ids are positions in the lists."""

    buffers: list[Buffer] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    variants: list[Variant] = field(default_factory=list)
    producers: dict[int, list[int]] = field(default_factory=dict)
    private: set[int] = field(default_factory=set)

    def add_buffer(self, name: str, size: int, kind: str = "temporary", **facts: object) -> int:
        self.buffers.append(Buffer(name, size, kind, **facts))  # type: ignore[arg-type]
        return len(self.buffers) - 1


def schemes_of(op: Op) -> set[int]:
    """The schemes that an op offers."""
    return {offer.scheme for offer in op.offers}


@st.composite
def instances(
    draw: st.DrawFn,
    max_ops: int = 9,
    min_ops: int = 1,
    variants: bool = False,
    rules: bool = False,
    recompute: bool = False,
) -> Instance:
    """Valid instances of ``min_ops`` to ``max_ops`` ops.

    ``variants`` adds alternatives (a library call beside a loop, a reduction split in two), ``rules`` adds no_fuse and
    barrier rules, which never make an instance infeasible. ``recompute`` lets some ops be computed several times.
    """
    draft = _Draft()
    for i in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["input", "input", "constant"]))
        donated = kind == "input" and draw(st.integers(0, 3)) == 0
        draft.add_buffer(f"in{i}", draw(st.sampled_from(SIZES)), kind, donated=donated)
    count = draw(st.integers(min_ops, max_ops))
    while len(draft.ops) < count:
        _add_value(draw, draft, room=count - len(draft.ops), variants=variants)
    _add_order_edges(draw, draft)
    limits = Limits(
        max_ops=draw(st.sampled_from([2, 3, 64, 64])),
        max_weight=draw(st.sampled_from([4, 1 << 30, 1 << 30])),
        connected=draw(st.booleans()),
    )
    return Instance(
        name="random",
        devices=(DEVICE,),
        schemes=SCHEMES,
        buffers=tuple(draft.buffers),
        ops=tuple(replace(op, recompute=draw(st.booleans())) for op in draft.ops) if recompute else tuple(draft.ops),
        edges=tuple(draft.edges),
        variants=tuple(draft.variants),
        limits=limits,
        rules=_rules(draw, count) if rules else Rules(),
    )


def _add_value(draw: st.DrawFn, draft: _Draft, room: int, variants: bool) -> None:
    """One more buffer, with the op, or the alternative ops, that compute it."""
    public = [number for number in range(len(draft.buffers)) if number not in draft.private]
    sources = draw(st.lists(st.sampled_from(public), min_size=0, max_size=3, unique=True))
    target = draft.add_buffer(
        f"b{len(draft.buffers)}", draw(st.sampled_from(SIZES)), output=draw(st.integers(0, 3)) == 0
    )
    shape = draw(st.sampled_from(["plain", "library", "split"])) if variants and room >= 2 else "plain"
    first = _add_op(draw, draft, sources, target)
    if shape == "library":
        second = (_add_op(draw, draft, sources, target, library=True),)
    elif shape == "split" and room >= 3:
        part = draft.add_buffer(f"b{len(draft.buffers)}", draw(st.sampled_from(SIZES)))
        draft.private.add(part)
        stage = _add_op(draw, draft, sources, part)
        second = (stage, _add_op(draw, draft, [part], target))
    else:
        return
    draft.variants.append(Variant(f"v{len(draft.variants)}", ((first,), second)))


def _add_op(draw: st.DrawFn, draft: _Draft, sources: list[int], target: int, library: bool = False) -> int:
    """An op that reads ``sources`` and writes ``target``, with the data edges that its reads imply."""
    library = library or draw(st.integers(0, 5)) == 0
    offered = [ALONE] if library else draw(st.lists(st.sampled_from(SHARED), min_size=1, max_size=3, unique=True))
    offers = tuple(_offer(draw, draft, scheme, sources, target) for scheme in sorted(offered))
    op = len(draft.ops)
    draft.ops.append(
        Op(
            name=f"op{op}",
            kind="library" if library else "loop",
            offers=offers,
            work=Work(fp32=draw(st.sampled_from([0, 1 << 16, 1 << 24])), special=draw(st.sampled_from([0, 1 << 22]))),
            weight=draw(st.integers(0, 3)),
        )
    )
    for source in sources:
        for producer in draft.producers.get(source, []):
            _add_edge(draw, draft, producer, op, source)
    draft.producers.setdefault(target, []).append(op)
    return op


def _offer(draw: st.DrawFn, draft: _Draft, scheme: int, sources: list[int], target: int) -> Offer:
    access: st.SearchStrategy[AccessClass] = st.sampled_from(
        ["contiguous", "contiguous", "strided", "broadcast", "gather"]
    )
    reads = tuple(
        Read(source, draft.buffers[source].bytes, draw(access), draw(st.integers(0, 1))) for source in sources
    )
    writes = (Write(target, draft.buffers[target].bytes, draw(access)),)
    reducing = SCHEMES[scheme].r > 1 and draw(st.booleans())
    return Offer(scheme, reads, writes, full=draw(st.booleans()) or reducing, reduces=reducing)


def _add_edge(draw: st.DrawFn, draft: _Draft, src: int, dst: int, buffer: int | None) -> None:
    """An edge allowed in most, some or none of the schemes that both ends offer."""
    common = sorted((schemes_of(draft.ops[src]) & schemes_of(draft.ops[dst])) - {ALONE})
    allowed = [scheme for scheme in common if draw(st.integers(0, 4)) > 0]
    draft.edges.append(Edge(src, dst, buffer, tuple(allowed)))


def _add_order_edges(draw: st.DrawFn, draft: _Draft) -> None:
    for dst in range(1, len(draft.ops)):
        if draw(st.integers(0, 7)) == 0:
            src = draw(st.integers(0, dst - 1))
            rivals = [v for v in draft.variants if any(src in a for a in v.alternatives)]
            if not any(dst in a for v in rivals for a in v.alternatives):
                _add_edge(draw, draft, src, dst, None)


def _rules(draw: st.DrawFn, count: int) -> Rules:
    op = st.integers(0, count - 1)
    pairs = draw(st.lists(st.tuples(op, op).filter(lambda pair: pair[0] != pair[1]), max_size=2))
    return Rules(no_fuse=tuple(pairs), barrier=tuple(draw(st.lists(op, max_size=1))))
