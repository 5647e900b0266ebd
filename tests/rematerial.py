"""Hypothesis generator of problems where computing a value twice can pay: cheap ops of few bytes in and many out."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from optfuse.problem.instance import ALONE, Buffer, Edge, Instance, Limits, Offer, Op, Read, Work, Write
from tests.strategies import DEVICE, SCHEMES

#: Launches are cheap beside bytes: else one kernel of all ops is the answer to everything.
QUICK = replace(DEVICE, launch_ps=50_000)
FLAT, ROWS = 2, 1
MIB = 1 << 20
SMALL, LARGE = 4096, (MIB, 3 * MIB)


@st.composite
def rematerial(draw: st.DrawFn, min_ops: int = 3, max_ops: int = 6) -> Instance:
    """Loops and library calls, each of one or two earlier values; nearly every loop may be computed several times."""
    buffers = [Buffer("small", SMALL, "input"), Buffer("large", LARGE[0], "input", donated=draw(st.booleans()))]
    ops: list[Op] = []
    edges: list[Edge] = []
    makers: dict[int, int] = {}
    count = draw(st.integers(min_ops, max_ops))
    for number in range(count):
        sources = draw(st.lists(st.integers(0, len(buffers) - 1), min_size=1, max_size=2, unique=True))
        library = draw(st.integers(0, 2)) == 0
        size = draw(st.sampled_from([SMALL, *LARGE]))
        target = len(buffers)
        last = number == count - 1
        buffers.append(Buffer(f"v{number}", size, output=last or draw(st.integers(0, 5)) == 0))
        reads = tuple(Read(source, buffers[source].bytes) for source in sources)
        schemes = (ALONE,) if library else draw(st.sampled_from([(FLAT,), (FLAT,), (ROWS, FLAT)]))
        offers = tuple(Offer(scheme, reads, (Write(target, size),)) for scheme in schemes)
        work = Work(fp32=draw(st.sampled_from([0, 0, 1 << 26])))
        kind = "library" if library else "loop"
        ops.append(Op(f"op{number}", kind, offers, work, recompute=not library and draw(st.integers(0, 4)) > 0))
        for source in sources:
            if source in makers:
                both = {offer.scheme for offer in ops[makers[source]].offers} & set(schemes) - {ALONE}
                edges.append(Edge(makers[source], number, source, tuple(sorted(both))))
        makers[target] = number
    limits = Limits(connected=draw(st.booleans()))
    return Instance("rematerial", (QUICK,), SCHEMES, tuple(buffers), tuple(ops), tuple(edges), limits=limits)


def masked() -> Instance:
    """mask(small) = m; scale(m) = a; matmul(a) = b; shrink(b) = c; apply(c, m) = d, the output. m, a, b are large."""
    sizes = {"small": SMALL, "m": 2 * MIB, "a": 2 * MIB, "b": 2 * MIB, "c": SMALL, "d": SMALL}
    names = list(sizes)
    buffers = tuple(
        Buffer(name, size, "input" if name == "small" else "temporary", output=name == "d")
        for name, size in sizes.items()
    )

    def op(name: str, sources: str, target: str, scheme: int = FLAT) -> Op:
        reads = tuple(Read(names.index(source), sizes[source]) for source in sources.split())
        write = Write(names.index(target), sizes[target])
        kind = "library" if scheme == ALONE else "loop"
        return Op(name, kind, (Offer(scheme, reads, (write,)),), recompute=name == "mask")

    ops = (
        op("mask", "small", "m"),
        op("scale", "m", "a"),
        op("matmul", "a", "b", ALONE),
        op("shrink", "b", "c", ROWS),
        op("apply", "c m", "d"),
    )
    edges = (Edge(0, 1, 1, (FLAT,)), Edge(0, 4, 1, (FLAT,)), Edge(1, 2, 2), Edge(2, 3, 3), Edge(3, 4, 4))
    return Instance("masked", (QUICK,), SCHEMES, buffers, ops, edges)
