"""Fusion problems that look like those of real models: chains with reductions, statistics, riders and residuals.

Where ``tests.strategies`` reaches odd corners, these reach the ground that presolve and incremental pricing are made
for: each buffer is read in one way, statistics are small, reductions tie what follows them.
"""

from __future__ import annotations

import random

from hypothesis import strategies as st

from optfuse.problem.instance import AccessClass, Buffer, Edge, Instance, Limits, Offer, Op, Read, Scheme, Work, Write
from tests.strategies import DEVICE

FLAT, ROWS, SMALL = 1, 2, 3
REDUCTIONS = (
    Scheme("rows", 64, 128, parallel=64),
    Scheme("few rows", 16, 128, parallel=16),
    Scheme("looped", 64, 1024, parallel=64),
    Scheme("few looped", 8, 1024, parallel=8),
)


class _Layers:
    """An instance under construction: values are (buffer, role), role "full" (every point) or "outer" (statistics)."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.buffers: list[Buffer] = []
        self.ops: list[Op] = []
        self.edges: list[Edge] = []
        self.maker: dict[int, int] = {}
        self.role: dict[int, str] = {}
        self.heavy = rng.choice([1 << 19, 1 << 19, 1 << 25, 1 << 26])
        self.transposed = rng.random() < 0.2

    def buffer(self, role: str, kind: str = "temporary") -> int:
        size = self.rng.choice([1 << 19, 1 << 20, 1 << 20]) if role == "full" else self.rng.choice([64, 256, 4096])
        number = len(self.buffers)
        self.buffers.append(Buffer(f"b{number}", size, kind))
        self.role[number] = role
        return number

    def pick(self, role: str) -> int:
        """A value of a role, recent ones more often, or a new input."""
        known = [b for b, r in self.role.items() if r == role]
        if not known or self.rng.random() < 0.15:
            return self.buffer(role, "input")
        return known[-1] if self.rng.random() < 0.6 else self.rng.choice(known)

    def op(self, kind: str) -> None:
        rng = self.rng
        reads = {self.pick("outer" if kind == "outer" else "full")}
        if rng.random() < 0.4:
            reads.add(self.pick("outer"))
        if kind == "full" and rng.random() < 0.3:
            reads.add(self.pick("full"))
        target = self.buffer("full" if kind in ("full", "library") else "outer")
        schemes = {"full": (FLAT, ROWS), "reduce": (ROWS,), "outer": (ROWS, SMALL), "library": (0,)}[kind]
        if kind == "full" and rng.random() < 0.2:
            schemes = (ROWS,)
        offers = tuple(
            Offer(
                scheme,
                tuple(Read(b, self.buffers[b].bytes, self.access(scheme), footprint=scheme) for b in sorted(reads)),
                (Write(target, self.buffers[target].bytes),),
                full=kind == "full" or scheme == SMALL,
                reduces=kind == "reduce",
            )
            for scheme in schemes
        )
        number = len(self.ops)
        fp32 = rng.choice([0, 1 << 10, 1 << 14, 1 << 19, self.heavy]) if kind != "outer" else rng.choice([0, 1 << 6])
        self.ops.append(
            Op(f"op{number}", "library" if kind == "library" else "loop", offers, Work(fp32=fp32), weight=1)
        )
        for b in sorted(reads):
            source = self.maker.get(b)
            if source is not None:
                self.edges.append(Edge(source, number, b, self.allowed(source, schemes, b)))
        self.maker[target] = number

    def access(self, scheme: int) -> AccessClass:
        """Rows of a transposed problem run across memory."""
        return "strided" if self.transposed and scheme == ROWS else "contiguous"

    def allowed(self, source: int, schemes: tuple[int, ...], buffer: int) -> tuple[int, ...]:
        """Values meet in any common scheme; full values never meet by rows alone if one is transposed (rarely)."""
        common = {offer.scheme for offer in self.ops[source].offers} & set(schemes) - {0}
        if self.rng.random() < 0.05:
            common -= {FLAT}
        return tuple(sorted(common)) if self.rng.random() > 0.03 or self.role[buffer] == "outer" else ()


def build(seed: int, count: int) -> Instance:
    """A layered instance of ``count`` ops."""
    rng = random.Random(seed)
    layers = _Layers(rng)
    while len(layers.ops) < count:
        layers.op(rng.choices(["full", "reduce", "outer", "library"], [6, 2, 4, 1])[0])
    used = {edge.buffer for edge in layers.edges}
    buffers = tuple(
        Buffer(b.name, b.bytes, b.kind, output=b.kind == "temporary" and (n not in used or rng.random() < 0.15))
        for n, b in enumerate(layers.buffers)
    )
    return Instance(
        "layered",
        (DEVICE,),
        (Scheme("alone", 1), Scheme("flat", 8192, parallel=8192), rng.choice(REDUCTIONS), Scheme("small", 64)),
        buffers,
        tuple(layers.ops),
        tuple(layers.edges),
        limits=Limits(max_ops=rng.choice([3, 64, 64, 64]), connected=rng.random() < 0.9),
    )


def layered(min_ops: int, max_ops: int) -> st.SearchStrategy[Instance]:
    """Layered instances of some size."""
    return st.builds(build, st.integers(0, 1 << 30), st.integers(min_ops, max_ops))
