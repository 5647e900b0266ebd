"""Reuse in place: exactly the pairs that the checker accepts, as many as there can be, and never at a price."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optfuse.problem.checker import check
from optfuse.problem.instance import ALONE, Buffer, Edge, Instance, Offer, Op, Read, Scheme, Write
from optfuse.problem.solution import Placement, Solution
from optfuse.solver.baseline.greedy import greedy
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.joint.peak_bound import Live, least_live
from optfuse.solver.memory.arena import Span, aligned, arena_floor, pack
from optfuse.solver.memory.assemble import arena_spans, arrange, assemble
from optfuse.solver.memory.footprint import live_bytes_apart
from optfuse.solver.memory.order_problem import HEURISTICS, order_problem
from optfuse.solver.memory.reuse import Cells, arena_cells, inplace_pairs, pack_cells
from optfuse.solver.solve import solve
from tests.layered import build
from tests.solver.memory.test_arena import assert_valid
from tests.strategies import DEVICE, share

KIB = 1 << 10


def placed(seed: int) -> Instance:
    """A random instance in which most accesses have one place and most buffers one size."""
    rng = random.Random(seed)
    instance = build(seed, rng.randint(3, 12))

    def moved(accesses: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(replace(access, place=rng.choice([0, 1, 1, 1, 1, 1, 1, 2])) for access in accesses)

    ops = tuple(
        replace(op, offers=tuple(replace(o, reads=moved(o.reads), writes=moved(o.writes)) for o in op.offers))
        for op in instance.ops
    )
    buffers = tuple(
        replace(buffer, bytes=rng.choice([0, KIB, KIB, KIB, KIB, KIB, 2 * KIB]), fixed=rng.random() < 0.1)
        for buffer in instance.buffers
    )
    return replace(instance, ops=ops, buffers=buffers)


INSTANCES = st.builds(placed, st.integers(0, 1 << 30))


def schedules(instance: Instance) -> list[Solution]:
    """Greedy's kernels, and every op on its own."""
    return [
        greedy(instance),
        assemble(instance, [((op,), instance.ops[op].offers[0].scheme) for op in range(len(instance.ops))]),
    ]


def spans_of(instance: Instance, solution: Solution) -> list[Span]:
    return arena_spans(instance, order_problem(instance, solution.kernels), range(len(solution.kernels)))


@settings(max_examples=share(250), deadline=None, derandomize=True)
@given(INSTANCES)
def test_the_checker_accepts_exactly_the_pairs(instance: Instance) -> None:
    """Every buffer on its own, but for one that lies where another does."""
    for solution in schedules(instance):
        spans = spans_of(instance, solution)
        pairs = inplace_pairs(instance, solution.kernels, spans)
        offsets = [4 * KIB * number for number in range(len(spans))]
        for old, first in enumerate(spans):
            for new, second in enumerate(spans):
                if old == new or first.last != second.first or not first.bytes or not second.bytes:
                    continue
                at = [*offsets[:new], offsets[old], *offsets[new + 1 :]]
                moved = replace(
                    solution,
                    placements=tuple(Placement(span.buffer, offset) for span, offset in zip(spans, at, strict=True)),
                    arena_bytes=max(offset + span.bytes for span, offset in zip(spans, at, strict=True)),
                )
                codes = {violation.code for violation in check(instance, moved)}
                assert codes == (set() if (old, new) in pairs else {"overlap"})


@settings(max_examples=share(250), deadline=None, derandomize=True)
@given(INSTANCES)
def test_reuse_is_valid_and_never_makes_the_arena_larger(instance: Instance) -> None:
    for solution in schedules(instance):
        problem = order_problem(instance, solution.kernels)
        for heuristic in HEURISTICS[:2]:
            order = heuristic(problem)
            arranged = arrange(instance, solution.kernels, problem, order)
            assert check(instance, arranged) == ()
            spans = arena_spans(instance, problem, order)
            assert arranged.arena_bytes <= pack(spans, deadline=0.0).arena_bytes


@settings(max_examples=share(250), deadline=None, derandomize=True)
@given(INSTANCES)
def test_joined_spans_are_as_few_bytes_as_can_be(instance: Instance) -> None:
    """At each kernel: the live bytes, less those of a largest matching of its pairs."""
    for solution in schedules(instance):
        spans = spans_of(instance, solution)
        pairs = inplace_pairs(instance, solution.kernels, spans)
        live = [0]
        for at in range(len(solution.kernels)):
            here = nx.Graph(
                (("old", old), ("new", new), {"weight": spans[old].bytes})
                for old, new in pairs
                if spans[new].first == at
            )
            saved = sum(aligned(spans[old].bytes) for (_, old), _ in map(sorted_pair, nx.max_weight_matching(here)))
            live.append(sum(aligned(span.bytes) for span in spans if span.first <= at <= span.last) - saved)
        joined, *_ = arena_cells(instance, solution.kernels, spans)
        assert arena_floor(joined.spans) == max(live)


@settings(max_examples=share(250), deadline=None, derandomize=True)
@given(INSTANCES)
def test_no_kernel_of_an_op_has_less_in_memory_than_the_bound(instance: Instance) -> None:
    ops = range(len(instance.ops))
    bounds = least_live(instance, ops, len(ops), lambda _: 0)
    for solution in schedules(instance):
        base = order_problem(instance, solution.kernels).base
        for kernel, live in zip(solution.kernels, live_bytes_apart(instance, solution), strict=True):
            for op in bounds.keys() & set(kernel.ops):
                assert base + bounds[op].bytes <= live


def test_a_result_counts_where_no_temporary_of_its_size_is_read() -> None:
    """A loop between two library calls: what it reads and writes is in memory once, or both where sizes differ."""
    alone = tuple(
        op if k == 1 else replace(op, kind="library", offers=(replace(op.offers[0], scheme=ALONE),))
        for k, op in enumerate(chain().ops)
    )
    equal = replace(chain(), ops=alone)
    assert least_live(equal, [1], 1, lambda _: 0)[1] == Live(KIB, frozenset())
    buffers = [*equal.buffers[:2], replace(equal.buffers[2], bytes=3 * KIB), *equal.buffers[3:]]
    larger = replace(equal, buffers=tuple(buffers))
    assert least_live(larger, [1], 1, lambda _: 0)[1] == Live(4 * KIB, frozenset({3 * KIB}))


def sorted_pair(edge: tuple[tuple[str, int], tuple[str, int]]) -> list[tuple[str, int]]:
    """The old one first."""
    return sorted(edge, key=lambda node: node[0], reverse=True)


@settings(max_examples=share(25), deadline=None, derandomize=True)
@given(INSTANCES)
def test_a_solve_reuses_and_its_arena_bound_is_true(instance: Instance) -> None:
    result = solve(instance, SolveOptions(workers=1, deterministic=True))
    assert check(instance, result.solution) == ()
    spans = spans_of(instance, result.solution)
    assert result.statistics.arena_bound <= result.solution.arena_bytes <= pack(spans).arena_bytes


def chain(*, places: Sequence[tuple[int, int]] = ((1, 1),) * 4, late: int | None = None) -> Instance:
    """op k: b(k) -> b(k+1), reading and writing at ``places[k]``; b4 is the output. Op ``late`` also reads b1."""
    ops, edges = [], []
    for k, (read, write) in enumerate(places):
        reads = [Read(k, KIB, place=read)]
        if k:
            edges.append(Edge(k - 1, k, k))
        if k == late:
            reads.append(Read(1, KIB, place=read))
            edges.append(Edge(0, k, 1))
        ops.append(Op(f"op{k}", "loop", (Offer(1, tuple(reads), (Write(k + 1, KIB, place=write),)),)))
    buffers = (Buffer("b0", KIB, "input"), *(Buffer(f"b{k}", KIB) for k in (1, 2, 3)), Buffer("b4", KIB, output=True))
    return Instance("chain", (DEVICE,), (Scheme("alone", 1), Scheme("flat", 256)), buffers, tuple(ops), tuple(edges))


def chained(instance: Instance) -> Solution:
    return assemble(instance, [((op,), 1) for op in range(4)])


def test_a_chain_of_buffers_takes_one_place() -> None:
    solution = chained(chain())
    assert solution.arena_bytes == KIB
    assert {placement.offset for placement in solution.placements} == {0}
    assert check(chain(), solution) == ()


def test_the_peak_counts_buffers_that_share_a_place() -> None:
    """Input, output, and two temporaries where op1 writes one over the other."""
    assert chained(chain()).peak_bytes == chained(chain(places=((0, 0),) * 4)).peak_bytes == 3 * KIB


@pytest.mark.parametrize(
    ("instance", "arena"),
    [
        (chain(places=((1, 1), (2, 1), (1, 1), (1, 1))), 2 * KIB),
        (chain(places=((1, 1), (1, 2), (1, 1), (1, 1))), 2 * KIB),
        (chain(places=((0, 0),) * 4), 2 * KIB),
        (chain(late=1), KIB),
        (chain(late=2), 2 * KIB),
        (chain(late=3), 2 * KIB),
    ],
    ids=["read elsewhere", "written elsewhere", "no places", "read twice at once", "read later", "read last"],
)
def test_when_a_place_cannot_be_taken(instance: Instance, arena: int) -> None:
    solution = chained(instance)
    assert solution.arena_bytes == arena
    assert check(instance, solution) == ()


def test_two_buffers_do_not_take_one_place() -> None:
    """b and c are both written where the kernel last reads a."""
    ops = (
        Op("first", "loop", (Offer(1, (), (Write(0, KIB, place=1),)),)),
        Op("both", "loop", (Offer(1, (Read(0, KIB, place=1),), (Write(1, KIB, place=1), Write(2, KIB, place=1))),)),
        Op("last", "library", (Offer(ALONE, (Read(1, KIB), Read(2, KIB)), (Write(3, KIB),)),)),
    )
    buffers = (Buffer("a", KIB), Buffer("b", KIB), Buffer("c", KIB), Buffer("d", KIB, output=True))
    edges = (Edge(0, 1, 0), Edge(1, 2, 1), Edge(1, 2, 2))
    instance = Instance("two", (DEVICE,), (Scheme("alone", 1), Scheme("flat", 256)), buffers, ops, edges)
    solution = assemble(instance, [((0,), 1), ((1,), 1), ((2,), ALONE)])
    assert solution.arena_bytes == 2 * KIB
    assert check(instance, solution) == ()
    crowded = replace(solution, placements=tuple(Placement(b, 0) for b in range(3)), arena_bytes=KIB)
    assert {violation.code for violation in check(instance, crowded)} == {"overlap"}


def test_packings_of_joined_spans_are_packings_of_all() -> None:
    instance = chain(late=2)
    solution = chained(instance)
    spans = spans_of(instance, solution)
    cells, packing = pack_cells(arena_cells(instance, solution.kernels, spans))
    assert len(cells.spans) < len(spans)
    apart = cells.apart(packing)
    assert [apart.offsets[number] for number in range(len(spans))] == [packing.offsets[k] for k in cells.cell]
    assert apart.arena_bytes == packing.arena_bytes
    assert_valid(list(cells.spans), packing.offsets, packing.arena_bytes)


def test_where_sharing_packs_worse_nothing_is_shared() -> None:
    """First fit finds a better packing when the last buffer does not hand its place on to the first."""
    spans = (Span(0, 128, 1, 4), Span(1, 192, 1, 2), Span(2, 256, 5, 6), Span(3, 192, 4, 6), Span(4, 128, 0, 1))
    none = Cells(spans, (0, 1, 2, 3, 4))
    shared = Cells((*spans[1:4], Span(4, 128, 0, 4)), (3, 0, 1, 2, 3))
    assert pack(shared.spans).arena_bytes > pack(spans).arena_bytes
    assert pack_cells((shared, none)) == (none, pack(spans))
