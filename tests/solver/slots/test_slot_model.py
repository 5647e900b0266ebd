"""Blocks by their number of kernels: the answer is the exhaustive solver's, and the bound never above it."""

from __future__ import annotations

import time
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optfuse.problem.cost import kernel_cost
from optfuse.problem.instance import Buffer, Edge, Instance, Limits, Offer, Op, Read, Scheme, Write
from optfuse.problem.legality import is_legal
from optfuse.problem.op_masks import mask_of
from optfuse.solver.baseline.exhaustive import exhaustive
from optfuse.solver.baseline.greedy import greedy
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.memory.assemble import assemble
from optfuse.solver.slots.slot_model import Mode, modes_of, separators_of
from optfuse.solver.slots.slot_search import fits_slot_model, solve_by_kernel_count
from tests.layered import build, layered
from tests.strategies import DEVICE, instances

QUIET = settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
OPTIONS = SolveOptions(workers=1, time_limit=60)


def test_the_answer_is_the_cheapest() -> None:
    exact: list[bool] = []

    @settings(QUIET, max_examples=25)
    @given(st.one_of(layered(5, 7), instances(min_ops=3, max_ops=6)), st.integers(1, 5))
    def check(instance: Instance, most: int) -> None:
        instance = replace(instance, limits=replace(instance.limits, max_ops=most))
        if not fits_slot_model(instance):
            return
        best = exhaustive(instance).solution
        assert best is not None
        alone = [(kernel.ops, kernel.scheme) for kernel in greedy(instance).kernels]
        found = solve_by_kernel_count(instance, tuple(alone), 0, 0, OPTIONS, time.monotonic() + 60)
        assert found.bound <= best.objective <= found.cost
        assert all(is_legal(instance, ops, scheme) for ops, scheme in found.kernels)
        # Assembling orders the kernels, which fails on a cycle.
        assert assemble(instance, found.kernels).objective == found.cost
        exact.append(found.bound == found.cost)

    check()
    # What is left is the price of looped kernels, which the model does not know in full.
    assert sum(exact) > 0.9 * len(exact)
    assert len(exact) > 8


def hub(parts: int) -> Instance:
    """One op whose small value ``parts`` pairs of ops take; nothing else links the pairs."""
    size = 1 << 20
    buffers = [Buffer("in", 64, "input"), Buffer("hub", 64)]
    ops = [Op("hub", "loop", (Offer(1, (Read(0, 64),), (Write(1, 64),)),))]
    edges: list[Edge] = []
    for part in range(parts):
        source, middle, end = (len(buffers) + k for k in range(3))
        buffers += [Buffer(f"{name}{part}", size, "input" if name == "x" else "temporary") for name in "xyz"]
        buffers[end] = replace(buffers[end], output=True)
        first = len(ops)
        reads = (Read(1, 64, footprint=10 + part), Read(source, size))
        ops.append(Op(f"first{part}", "loop", (Offer(1, reads, (Write(middle, size),)),)))
        ops.append(Op(f"second{part}", "loop", (Offer(1, (Read(middle, size),), (Write(end, size),)),)))
        edges += [Edge(0, first, 1, (1,)), Edge(first, first + 1, middle, (1,))]
    schemes = (Scheme("alone", 1), Scheme("flat", 1 << 18, parallel=1024))
    return Instance("hub", (DEVICE,), schemes, tuple(buffers), tuple(ops), tuple(edges), limits=Limits(5))


def test_what_one_op_holds_together() -> None:
    """A kernel of five holds the hub and two pairs; each other pair is a kernel of its own, whatever room there is."""
    instance = hub(7)
    start = tuple(((op,), 1) for op in range(len(instance.ops)))
    found = solve_by_kernel_count(instance, start, 0, 0, OPTIONS, time.monotonic() + 60)
    assert found.bound == found.cost == sum(kernel_cost(instance, ops, scheme) for ops, scheme in found.kernels)
    assert sorted(len(ops) for ops, _ in found.kernels) == [2, 2, 2, 2, 2, 5]


def test_separators() -> None:
    instance = hub(8)
    modes = modes_of(instance)
    assert modes == (Mode(1, (1 << 17) - 1),)
    pairs = {mask_of((first, first + 1)) for first in range(1, 17, 2)}
    (separator,) = separators_of(instance, ((mask_of((1, 2, 3, 4)), 1),))
    assert separator.ops == 1
    assert set(separator.parts) == pairs
    assert separators_of(instance, ((mask_of((0, 1, 2, 3, 4)), 1),)) == []


def test_a_reduction_that_cannot_fill_the_device_is_a_mode_of_its_own() -> None:
    instance = build(3, 30)
    few = replace(instance, schemes=tuple(replace(scheme, parallel=4) for scheme in instance.schemes))
    assert {mode.numerator for mode in modes_of(few)} > {1}


def test_out_of_time_it_returns_the_start() -> None:
    instance = hub(7)
    start = tuple(((op,), 1) for op in range(len(instance.ops)))
    found = solve_by_kernel_count(instance, start, 3, 0, OPTIONS, time.monotonic())
    assert found.kernels == start
    assert found.bound < found.cost


def test_launches_of_different_price_are_not_for_this_model() -> None:
    """It says a launch by the number of slots alone."""
    plain = build(0, 7)
    dearer = replace(plain, ops=(replace(plain.ops[0], launch_ps=1000), *plain.ops[1:]))
    assert fits_slot_model(plain)
    assert not fits_slot_model(dearer)
