"""Greedy fusion: always legal, and on hand-made graphs what TorchInductor's rules say."""

from __future__ import annotations

import time
from dataclasses import replace

from hypothesis import given, settings

from optfuse.problem.checker import check
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
    Write,
)
from optfuse.solver.baseline.greedy import greedy, greedy_partition
from optfuse.solver.memory.assemble import assemble
from tests.problem.cases import ADD, GELU, MATMUL, SCALE, SHIFT, SUM, example
from tests.strategies import DEVICE, instances, share

FLAT, ROWS = 1, 2
SCHEMES = (Scheme("alone", 1), Scheme("flat", 4096, 1, 4096), Scheme("rows", 64, 64, 64))
KIB = 1 << 10


@settings(max_examples=share(150), deadline=None, derandomize=True)
@given(instances(variants=True, rules=True))
def test_always_legal(instance: Instance) -> None:
    assert check(instance, greedy(instance)) == ()


@settings(max_examples=share(30), deadline=None, derandomize=True)
@given(instances())
def test_legal_when_stopped_at_once(instance: Instance) -> None:
    assert check(instance, assemble(instance, greedy_partition(instance, time.monotonic() - 1).partition)) == ()


def test_says_when_it_was_stopped() -> None:
    assert greedy_partition(example()).complete
    stopped = greedy_partition(example(), time.monotonic() - 1)
    assert not stopped.complete
    assert len(stopped.partition) == len(example().ops)


@settings(max_examples=share(50), deadline=None, derandomize=True)
@given(instances())
def test_the_fusions_that_it_tells_of_make_its_kernels(instance: Instance) -> None:
    groups = {frozenset([op]) for op in range(len(instance.ops))}

    def fused(one: tuple[int, ...], two: tuple[int, ...], _saved: int) -> None:
        groups.symmetric_difference_update({frozenset(one), frozenset(two), frozenset(one + two)})

    outcome = greedy_partition(instance, on_fusion=fused)

    assert groups == {frozenset(ops) for ops, _ in outcome.partition}


class Graph:
    """A graph of ops, one buffer each, built a line an op."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.ops: list[Op] = []
        self.edges: list[Edge] = []
        self.made_by: dict[int, int] = {}

    def input(self, size: int = 64 * KIB) -> int:
        self.buffers.append(Buffer(f"in{len(self.buffers)}", size, "input"))
        return len(self.buffers) - 1

    def op(
        self,
        *reads: int,
        size: int = 64 * KIB,
        schemes: tuple[int, ...] = (FLAT,),
        reduces: bool = False,
        apart: tuple[int, ...] = (),
    ) -> int:
        """Add an op; values of the buffers ``apart`` cannot be taken from registers. Returns its buffer."""
        made = len(self.buffers)
        self.buffers.append(Buffer(f"b{made}", size))
        taken = tuple(Read(read, self.buffers[read].bytes, footprint=int(read in apart)) for read in reads)
        kind = "library" if schemes == (ALONE,) else "loop"
        offers = tuple(Offer(s, taken, (Write(made, size),), reduces=reduces) for s in schemes)
        self.ops.append(Op(f"op{len(self.ops)}", kind, offers))
        for read in reads:
            if read in self.made_by:
                source = self.ops[self.made_by[read]]
                shared = {offer.scheme for offer in source.offers} & set(schemes) - {ALONE}
                self.edges.append(
                    Edge(self.made_by[read], len(self.ops) - 1, read, () if read in apart else tuple(sorted(shared)))
                )
        self.made_by[made] = len(self.ops) - 1
        return made

    def library(self, *reads: int) -> int:
        return self.op(*reads, schemes=(ALONE,))

    def build(self, **facts: object) -> Instance:
        ends = {edge.buffer for edge in self.edges}
        buffers = tuple(
            replace(buffer, output=number in self.made_by and number not in ends)
            for number, buffer in enumerate(self.buffers)
        )
        return Instance("graph", (DEVICE,), SCHEMES, buffers, tuple(self.ops), tuple(self.edges), **facts)  # type: ignore[arg-type]

    def fused(self, **facts: object) -> set[tuple[int, ...]]:
        """The kernels of several ops that greedy makes."""
        solution = greedy(self.build(**facts))
        return {kernel.ops for kernel in solution.kernels if len(kernel.ops) > 1}


def test_chains_fuse_from_end_to_end() -> None:
    graph = Graph()
    value = graph.input()
    for _ in range(6):
        value = graph.op(value)
    assert graph.fused() == {(0, 1, 2, 3, 4, 5)}


def test_library_calls_stay_alone_and_separate() -> None:
    graph = Graph()
    first = graph.op(graph.op(graph.input()))
    graph.op(graph.op(graph.library(first)), first)
    # Both sides use `first`, but the path through the library call forbids one kernel.
    assert graph.fused() == {(0, 1), (3, 4)}


def test_siblings_fuse_when_they_share_reads() -> None:
    graph = Graph()
    shared, other = graph.input(), graph.input()
    graph.op(shared)
    graph.op(shared)
    graph.op(other)
    assert graph.fused() == {(0, 1)}


def test_siblings_need_ten_bytes() -> None:
    graph = Graph()
    scalar = graph.input(size=8)
    graph.op(scalar, graph.input())
    graph.op(scalar, graph.input())
    assert graph.fused() == set()


def far_apart(gap: int) -> Graph:
    """Two readers of one input with ``gap`` library calls between them in the program."""
    graph = Graph()
    shared = graph.input()
    graph.op(shared)
    for _ in range(gap):
        graph.library(graph.input())
    graph.op(shared)
    return graph


def test_siblings_fuse_up_to_sixty_four_ops_apart() -> None:
    assert far_apart(63).fused() == {(0, 64)}
    assert far_apart(64).fused() == set()


def test_producer_and_consumer_fuse_at_any_distance() -> None:
    graph = Graph()
    value = graph.op(graph.input())
    for _ in range(100):
        graph.library(graph.input())
    graph.op(value)
    assert graph.fused() == {(0, 101)}


def test_at_most_sixty_four_ops() -> None:
    graph = Graph()
    value = graph.input()
    for _ in range(80):
        value = graph.op(value)
    assert max(len(ops) for ops in graph.fused(limits=Limits(max_ops=1000))) <= 64


def test_the_better_partner_comes_first() -> None:
    """The middle op may join one neighbour only; it joins the one it shares more bytes with."""
    graph = Graph()
    small = graph.op(graph.input(), size=KIB)
    large = graph.op(graph.input(), size=64 * KIB)
    graph.op(small, large)
    assert graph.fused(limits=Limits(max_ops=2)) == {(1, 2)}


def test_pairs_of_one_kind_come_before_more_bytes() -> None:
    """A pointwise op prefers a pointwise partner over a reduction that shares more."""
    graph = Graph()
    small = graph.op(graph.input(), size=KIB, schemes=(FLAT, ROWS))
    large = graph.op(graph.input(), schemes=(ROWS,), reduces=True)
    graph.op(small, large, schemes=(FLAT, ROWS))
    assert graph.fused(limits=Limits(max_ops=2)) == {(0, 2)}


def test_the_cheapest_common_scheme_is_taken() -> None:
    graph = Graph()
    value = graph.op(graph.input(), schemes=(FLAT, ROWS))
    graph.op(value, schemes=(ROWS,), reduces=True)
    (kernel,) = greedy(graph.build()).kernels
    assert (kernel.ops, kernel.scheme) == ((0, 1), ROWS)


def test_no_cycles_between_kernels() -> None:
    """Two chains that cross: fusing both pairs would make each kernel wait for the other."""
    graph = Graph()
    left, right = graph.op(graph.input()), graph.op(graph.input())
    graph.op(right, left, apart=(left,))
    graph.op(left, right, apart=(right,))
    assert len(graph.fused()) == 1


def test_unmatched_reads_do_not_fuse() -> None:
    graph = Graph()
    value = graph.op(graph.input())
    graph.op(value, apart=(value,))
    assert graph.fused() == set()


def test_fusion_may_not_hold_too_much_memory_for_too_little() -> None:
    """Siblings that share 64 bytes, each with a 64 KiB value that only it uses, over 32 times as much: better apart."""
    graph = Graph()
    shared = graph.input(size=64)
    left, right = graph.library(graph.input()), graph.library(graph.input())
    graph.op(left, shared)
    graph.op(right, shared)
    assert graph.fused() == set()


def test_rules_are_obeyed() -> None:
    chain = Graph()
    value = chain.input()
    for _ in range(4):
        value = chain.op(value)
    assert chain.fused(rules=Rules(barrier=(1,))) == {(2, 3)}
    assert chain.fused(rules=Rules(single_kernel=((1, 2),))) == {(1, 2)}
    assert all(not {1, 2} <= set(ops) for ops in chain.fused(rules=Rules(no_fuse=((1, 2),))))
    assert {0, 1} <= set(next(iter(chain.fused(rules=Rules(fuse=((0, 1),))))))


def test_the_first_alternative_runs_unless_a_rule_names_another() -> None:
    graph = Graph()
    value = graph.op(graph.input())
    graph.op(value)
    instance = graph.build()
    twin = replace(instance.ops[1], name="twin")
    instance = replace(
        instance,
        ops=(*instance.ops, twin),
        edges=(*instance.edges, replace(instance.edges[0], dst=2)),
        variants=(Variant("v", ((1,), (2,))),),
    )
    assert [kernel.ops for kernel in greedy(instance).kernels] == [(0, 1)]
    forced = replace(instance, rules=Rules(fuse=((0, 2),)))
    assert [kernel.ops for kernel in greedy(forced).kernels] == [(0, 2)]


def test_the_example() -> None:
    kernels = {kernel.ops for kernel in greedy(example()).kernels}
    assert kernels == {(SCALE, SHIFT), (MATMUL,), (ADD, GELU, SUM)}
