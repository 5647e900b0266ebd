"""The checker on kernels that share a launch: independent, alike where they are large, each with its memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optfuse.problem.checker import check
from optfuse.problem.instance import Buffer, Device, Edge, Instance, Offer, Op, OpKind, Read, Rules, Scheme, Work, Write
from optfuse.problem.launches import launchable
from optfuse.problem.solution import Solution
from optfuse.solver.memory.assemble import arrange, assemble
from optfuse.solver.memory.order_problem import order_problem
from tests.strategies import DEVICE

KIB, MIB = 1 << 10, 1 << 20
SHARES = replace(DEVICE, launch_ps=2_000_000, shared_ps=100_000)


def op(name: str, read: int, write: int, size: int, form: int = 0, kind: OpKind = "loop", tensor: int = 0) -> Op:
    offers = tuple(Offer(s, (Read(read, size, place=1),), (Write(write, size, place=1),)) for s in (0, 1))
    return Op(name, kind, offers if kind == "loop" else offers[:1], Work(tensor=tensor), form=form)


def two_chains(size: int = KIB, *, device: Device = SHARES, **changes: object) -> Instance:
    """x0 -> t0 -> y0 and x1 -> t1 -> y1, of one size; ``changes`` are those of op a1."""
    buffers = [Buffer(f"x{k}", size, "input") for k in range(2)]
    buffers += [Buffer(f"t{k}", size) for k in range(2)] + [Buffer(f"y{k}", size, output=True) for k in range(2)]
    ops = [op("a0", 0, 2, size, 1), op("b0", 2, 4, size, 2), op("a1", 1, 3, size, 1), op("b1", 3, 5, size, 2)]
    ops[2] = replace(ops[2], **changes)  # type: ignore[arg-type]
    edges = (Edge(0, 1, 2), Edge(2, 3, 3))
    return Instance("two", (device,), (Scheme("alone", 1), Scheme("x", 256)), tuple(buffers), tuple(ops), edges)


Launches = tuple[tuple[int, ...], ...]


def launched(instance: Instance, launches: Launches, order: tuple[int, ...] = (0, 2, 1, 3)) -> Solution:
    """A kernel an op, in an order, some of them in one launch."""
    kinds = [int(op.kind == "loop") for op in instance.ops]
    kernels = assemble(instance, [((k,), kinds[k]) for k in range(4)]).kernels
    return arrange(instance, kernels, order_problem(instance, kernels), order, launches=launches)


def codes(instance: Instance, solution: Solution) -> set[str]:
    return {violation.code for violation in check(instance, solution)}


@pytest.mark.parametrize("size", [KIB, 64 * MIB])
def test_like_kernels_of_any_size_share_launches(size: int) -> None:
    instance = two_chains(size)
    solution = launched(instance, ((0, 1), (2, 3)))
    assert codes(instance, solution) == set()
    assert solution.saved_ps == 2 * 1_900_000


@pytest.mark.parametrize("form", [3, 0])
def test_large_kernels_are_alike(form: int) -> None:
    small, large = two_chains(form=form), two_chains(64 * MIB, form=form)
    assert codes(small, launched(small, ((0, 1),))) == set()
    assert codes(large, launched(large, ((0, 1),))) == {"launch"}


@pytest.mark.parametrize("device", [replace(SHARES, shared_ps=0), replace(SHARES, shared_ps=2_000_000)])
def test_a_device_without_a_price_shares_nothing(device: Device) -> None:
    instance = two_chains(device=device)
    solution = launched(instance, ((0, 1),))
    assert codes(instance, solution) == {"launch"}
    assert launchable(instance, solution.kernels[0]) is None


def test_calls_products_and_barriers_run_alone() -> None:
    for instance in (
        two_chains(kind="library", offers=two_chains().ops[2].offers[:1]),
        two_chains(work=Work(tensor=8)),
        replace(two_chains(), rules=Rules(barrier=(2,))),
    ):
        assert codes(instance, launched(instance, ((0, 1),))) == {"launch"}


def test_no_kernel_of_a_launch_needs_another() -> None:
    instance = two_chains()
    assert codes(instance, launched(instance, ((0, 1),), (0, 1, 2, 3))) == {"launch"}
    ordered = replace(instance, edges=(*instance.edges, Edge(0, 2)))
    assert codes(ordered, launched(ordered, ((0, 1),))) == {"launch"}


NO_RUNS: list[Launches] = [((0, 2),), ((1, 0),), ((0,),), ((),), ((0, 1), (1, 2)), ((2, 3), (0, 1)), ((3, 4),)]


@pytest.mark.parametrize("launches", NO_RUNS)
def test_launches_are_runs_of_kernels(launches: Launches) -> None:
    instance = two_chains()
    assert codes(instance, replace(launched(instance, ()), launches=launches)) == {"launch"}


def test_buffers_of_one_launch_live_together() -> None:
    """t1 may take t0's place in the order a0 b0 a1 b1, and not where b0 and a1 share a launch."""
    instance = two_chains()
    apart = launched(instance, (), (0, 1, 2, 3))
    assert len({place.offset for place in apart.placements}) == 1
    shared = launched(instance, ((1, 2),), (0, 1, 2, 3))
    assert codes(instance, shared) == set()
    assert shared.arena_bytes == 2 * KIB
    assert "overlap" in codes(instance, replace(shared, placements=apart.placements, arena_bytes=KIB))
