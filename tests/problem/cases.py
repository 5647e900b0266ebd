"""A small instance with one of everything, and a good solution of it, to be corrupted or mended by tests."""

from __future__ import annotations

from dataclasses import replace

from optfuse.problem.instance import ALONE, Buffer, Edge, Instance, Limits, Offer, Op, Read, Scheme, Write
from optfuse.problem.serialize import digest
from optfuse.problem.solution import Kernel, Solution
from optfuse.solver.memory.assemble import assemble
from tests.strategies import DEVICE

KIB = 1 << 10
MIB = 1 << 20

ROWS, FLAT = 1, 2
SCHEMES = (Scheme("alone", 1), Scheme("rows", 512, 64, parallel=512), Scheme("flat", 512 * 64, 1, parallel=512 * 64))

X, W, A, B, C, D, E, F = range(8)
BUFFERS = (
    Buffer("x", MIB, "input"),
    Buffer("w", KIB, "input", donated=True),
    Buffer("a", MIB),
    Buffer("b", MIB),
    Buffer("c", MIB, output=True),
    Buffer("d", MIB),
    Buffer("e", MIB),
    Buffer("f", 4 * KIB, output=True),
)

SCALE, SHIFT, MATMUL, ADD, GELU, SUM = range(6)


def loop(name: str, reads: tuple[int, ...], write: int, schemes: tuple[int, ...] = (ROWS, FLAT), **facts: object) -> Op:
    """A loop op that reads and writes whole buffers."""
    offers = tuple(
        Offer(
            scheme,
            tuple(Read(number, BUFFERS[number].bytes) for number in reads),
            (Write(write, BUFFERS[write].bytes),),
            reduces=name == "sum",
        )
        for scheme in schemes
    )
    return Op(name, "loop", offers, **facts)  # type: ignore[arg-type]


def example() -> Instance:
    """scale(x, w) = a; shift(a) = b; matmul(b) = d; add(a, d) = c; gelu(c) = e; sum(e) = f. Outputs c and f."""
    matmul = Op("matmul", "library", (Offer(ALONE, (Read(B, MIB),), (Write(D, MIB),)),))
    ops = (
        loop("scale", (X, W), A),
        loop("shift", (A,), B),
        matmul,
        loop("add", (A, D), C),
        loop("gelu", (C,), E),
        loop("sum", (E,), F, (ROWS,)),
    )
    edges = (
        Edge(SCALE, SHIFT, A, (ROWS, FLAT)),
        Edge(SCALE, ADD, A, (ROWS, FLAT)),
        Edge(SHIFT, MATMUL, B),
        Edge(MATMUL, ADD, D),
        Edge(ADD, GELU, C, (FLAT, ROWS)),
        Edge(GELU, SUM, E, (ROWS,)),
    )
    return Instance("example", (DEVICE,), SCHEMES, BUFFERS, ops, edges, limits=Limits(max_weight=16))


def answer(instance: Instance) -> Solution:
    """Four kernels: scale+shift, matmul, add+gelu, sum. Not the best."""
    return assemble(instance, [((SCALE, SHIFT), FLAT), ((MATMUL,), ALONE), ((ADD, GELU), FLAT), ((SUM,), ROWS)])


def with_kernels(solution: Solution, *kernels: Kernel) -> Solution:
    """The solution with other kernels and nothing else changed."""
    return replace(solution, kernels=kernels)


def claims(instance: Instance, solution: Solution) -> Solution:
    """The solution under the digest of another instance."""
    return replace(solution, instance_digest=digest(instance))
