"""When one buffer may lie where another does while both are live: written in place, and in no other case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from optfuse.problem.checker import check
from optfuse.problem.cost import default_writes, kernel_cost
from optfuse.problem.instance import ALONE, Buffer, Edge, Instance, Offer, Op, Read, Scheme, Write
from optfuse.problem.serialize import digest, instance_from_json, instance_to_json
from optfuse.problem.solution import Kernel, Placement, Solution
from optfuse.solver.memory.order_problem import order_problem, peak_bytes
from tests.strategies import DEVICE

SIZE = 1024
X, OLD, PART, NEW, OUT = range(5)
MAKE, HALF, REST, USE = range(4)
FLAT = 1


def op(name: str, reads: dict[int, int], writes: dict[int, int]) -> Op:
    """A loop op that reads and writes buffers at places."""
    offer = Offer(
        FLAT,
        tuple(Read(buffer, SIZE, place=place) for buffer, place in reads.items()),
        tuple(Write(buffer, SIZE, place=place) for buffer, place in writes.items()),
    )
    return Op(name, "loop", (offer,))


def instance() -> Instance:
    """make(x) = old; half(old) = part; rest(part) = new; use(new) = out, the output. All at place 1."""
    ops = (
        op("make", {X: 1}, {OLD: 1}),
        op("half", {OLD: 1}, {PART: 1}),
        op("rest", {PART: 1}, {NEW: 1}),
        op("use", {NEW: 1}, {OUT: 1}),
    )
    buffers = tuple(
        Buffer(name, SIZE, "input" if name == "x" else "temporary", output=name == "out")
        for name in ("x", "old", "part", "new", "out")
    )
    edges = (Edge(MAKE, HALF, OLD, (FLAT,)), Edge(HALF, REST, PART, (FLAT,)), Edge(REST, USE, NEW, (FLAT,)))
    return Instance("inplace", (DEVICE,), (Scheme("alone", 1), Scheme("flat", 256)), buffers, ops, edges)


def answer(problem: Instance, *groups: tuple[int, ...], at: dict[int, int] | None = None) -> Solution:
    """Kernels of these ops in this order, and new where old is; the totals are right."""
    groups = groups or ((MAKE,), (HALF, REST), (USE,))
    schemes = [problem.ops[group[0]].offers[0].scheme for group in groups]
    kernels = tuple(
        Kernel(group, scheme, default_writes(problem, group, scheme))
        for group, scheme in zip(groups, schemes, strict=True)
    )
    offsets = {OLD: 0, NEW: 0} if at is None else at
    return Solution(
        problem.name,
        digest(problem),
        kernels,
        tuple(Placement(buffer, offset) for buffer, offset in offsets.items()),
        arena_bytes=max(offset + problem.buffers[buffer].bytes for buffer, offset in offsets.items()),
        objective=sum(kernel_cost(problem, kernel.ops, kernel.scheme) for kernel in kernels),
        peak_bytes=peak_bytes(order_problem(problem, kernels), range(len(kernels))),
    )


def codes(problem: Instance, solution: Solution) -> set[str]:
    return {violation.code for violation in check(problem, solution)}


def test_a_buffer_may_be_written_where_the_kernel_reads_last() -> None:
    """The op that writes is not the one that reads: the value passes from one to the other in registers."""
    assert check(instance(), answer(instance())) == ()


def test_the_peak_counts_both_buffers() -> None:
    apart = answer(instance(), at={OLD: 0, NEW: SIZE})
    assert answer(instance()).peak_bytes == apart.peak_bytes == 3 * SIZE
    assert check(instance(), apart) == ()


def changed(position: int, **fields: object) -> Instance:
    """The instance with another op in one position."""
    ops = list(instance().ops)
    ops[position] = op(ops[position].name, **fields)  # type: ignore[arg-type]
    return replace(instance(), ops=tuple(ops))


def with_reader(position: int, place: int) -> Instance:
    """One op reads the old buffer too."""
    reads = {read.buffer: read.place for read in instance().ops[position].offers[0].reads}
    writes = {write.buffer: write.place for write in instance().ops[position].offers[0].writes}
    problem = changed(position, reads={**reads, OLD: place}, writes=writes)
    return replace(problem, edges=(*problem.edges, Edge(MAKE, position, OLD, (FLAT,))))


def with_silent_reader() -> Instance:
    """An op takes the old buffer, and where it reads it is unknown."""
    return replace(instance(), edges=(*instance().edges, Edge(MAKE, REST, OLD, (FLAT,))))


def larger(buffer: int) -> Instance:
    buffers = list(instance().buffers)
    buffers[buffer] = replace(buffers[buffer], bytes=2 * SIZE)
    return replace(instance(), buffers=tuple(buffers))


def library_call() -> tuple[Instance, Solution]:
    """The kernel that reads the old buffer and writes another in its place is a library call, which names no places."""
    ops = list(instance().ops)
    ops[HALF] = Op("half", "library", (Offer(ALONE, (Read(OLD, SIZE),), (Write(PART, SIZE),)),))
    edges = tuple(replace(edge, schemes=()) for edge in instance().edges)
    problem = replace(instance(), ops=tuple(ops), edges=edges)
    return problem, answer(problem, (MAKE,), (HALF,), (REST,), (USE,), at={OLD: 0, PART: 0, NEW: SIZE})


def written_again() -> tuple[Instance, Solution]:
    """The old buffer is computed, and written, a second time by the kernel that writes the new one in its place."""
    ops = list(instance().ops)
    ops[MAKE] = replace(ops[MAKE], recompute=True)
    problem = replace(instance(), ops=tuple(ops))
    kernels = (
        Kernel((MAKE,), FLAT, (OLD,)),
        Kernel((MAKE, HALF, REST), FLAT, (OLD, NEW)),
        Kernel((USE,), FLAT, (OUT,)),
    )
    costs = [kernel_cost(problem, kernel.ops, kernel.scheme, kernel.writes) for kernel in kernels]
    return problem, replace(answer(problem), kernels=kernels, objective=sum(costs))


def without_places() -> Instance:
    ops = tuple(
        op(o.name, {r.buffer: 0 for r in o.offers[0].reads}, {w.buffer: 0 for w in o.offers[0].writes})
        for o in instance().ops
    )
    return replace(instance(), ops=ops)


REJECTED: dict[str, Callable[[], tuple[Instance, Solution]]] = {
    "read at another place": lambda: _pair(changed(HALF, reads={OLD: 2}, writes={PART: 1})),
    "written at another place": lambda: _pair(changed(REST, reads={PART: 1}, writes={NEW: 2})),
    "neither has a place": lambda: _pair(without_places()),
    "a second reader in the kernel, elsewhere": lambda: _pair(with_reader(REST, 2)),
    "a second reader in the kernel, anywhere": lambda: _pair(with_silent_reader()),
    "a later reader": lambda: _pair(with_reader(USE, 1)),
    "of another size": lambda: _pair(larger(NEW)),
    "larger than what comes": lambda: _pair(larger(OLD)),
    "written by the same kernel": lambda: _pair(with_reader(USE, 1), (MAKE, HALF, REST), (USE,)),
    "written again by the same kernel": lambda: written_again(),
    "partly on top": lambda: (instance(), answer(instance(), at={OLD: 0, NEW: 64})),
    "library call": lambda: library_call(),
}


def _pair(problem: Instance, *groups: tuple[int, ...]) -> tuple[Instance, Solution]:
    return problem, answer(problem, *groups)


@pytest.mark.parametrize("case", REJECTED)
def test_any_other_overlap_is_a_violation(case: str) -> None:
    useless = {"recompute"} if case == "written again by the same kernel" else set[str]()  # its first kernel is no use
    assert codes(*REJECTED[case]()) == {"overlap"} | useless


def test_a_second_reader_at_the_same_place_is_no_obstacle() -> None:
    assert codes(*_pair(with_reader(REST, 1))) == set()


def test_places_survive_files_and_are_left_out_by_default() -> None:
    assert instance_from_json(instance_to_json(instance())) == instance()
    assert '"place"' not in instance_to_json(without_places())
