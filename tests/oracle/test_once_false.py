"""Instances of which something false was once said or raised, each with what is true."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optfuse.problem.instance import Buffer, Edge, Instance, Limits, Offer, Op, Read, Variant, Write
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.solve import solve
from tests.fuzzing import SCHEMES
from tests.oracle.agreeing import assert_agrees, best_cost, capped
from tests.strategies import DEVICE

ROWS, FLAT, SIZE = 1, 2, 4096
OPTIONS = SolveOptions(workers=1, deterministic=True)


def instance(buffers: tuple[Buffer, ...], ops: tuple[Op, ...], *edges: Edge, **facts: object) -> Instance:
    return Instance("small", (DEVICE,), SCHEMES, buffers, ops, edges, **facts)  # type: ignore[arg-type]


def loop(name: str, reads: tuple[int, ...], writes: tuple[int, ...], schemes: tuple[int, ...] = (FLAT,)) -> Op:
    accesses = tuple(Read(b, SIZE) for b in reads), tuple(Write(b, SIZE) for b in writes)
    kind = "library" if schemes == (0,) else "loop"
    return Op(name, kind, tuple(Offer(scheme, *accesses) for scheme in schemes))


def value_of_alternatives(schemes: tuple[int, ...]) -> Instance:
    """One value, used by the one op of each of two alternatives; ``schemes`` are those in which it may be passed on."""
    ops = (loop("make", (), (0,)), loop("use", (0,), ()), loop("twin", (0,), ()))
    edges = (Edge(0, 1, 0, schemes), Edge(0, 2, 0, schemes))
    return instance((Buffer("v", SIZE),), ops, *edges, variants=(Variant("v", ((1,), (2,))),))


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("percent", [None, 0, 100])
def test_a_value_is_not_written_for_an_alternative_that_does_not_run(recompute: bool, percent: int | None) -> None:
    """The joint model wrote it, and said that nothing is cheaper."""
    problem = value_of_alternatives((FLAT,))
    problem = problem if percent is None else capped(problem, percent)
    assert assert_agrees(problem, recompute=recompute) == "OPTIMAL"
    result = solve(problem, replace(OPTIONS, recompute=recompute))
    assert result.objective == DEVICE.launch_ps
    assert [kernel.writes for kernel in result.solution.kernels] == [()]


@pytest.mark.parametrize("recompute", [False, True])
def test_a_value_that_only_the_dearer_alternative_uses_costs_nothing(recompute: bool) -> None:
    """Blocks, greedy and the exhaustive oracle wrote it whichever alternative ran."""
    ops = (loop("make", (), (0,), (0,)), loop("use", (0,), (1,), (ROWS,)), loop("other", (), (1,), (ROWS,)))
    buffers = (Buffer("v", SIZE), Buffer("out", SIZE, output=True))
    problem = instance(buffers, ops, Edge(0, 1, 0), variants=(Variant("v", ((1,), (2,))),))
    assert assert_agrees(problem, recompute=recompute) == "OPTIMAL"
    result = solve(problem, replace(OPTIONS, recompute=recompute))
    assert [kernel.writes for kernel in result.solution.kernels] == [(), (1,)]


def test_an_alternative_may_be_nothing() -> None:
    """Cutting out a block looked at the first op of the first alternative; a block of one op always ran it."""
    ops = (loop("maybe", (0,), (), (0,)), loop("last", (0,), (1,)))
    buffers = (Buffer("in", SIZE, "input"), Buffer("out", SIZE, output=True))
    for alternatives in (((), (0,)), ((0,), ())):
        problem = instance(buffers, ops, variants=(Variant("v", alternatives),))
        assert assert_agrees(problem) == "OPTIMAL"
        assert len(solve(problem, OPTIONS).solution.kernels) == 1


def test_two_ops_that_may_run_alone_are_not_fused_in_that_scheme() -> None:
    """Greedy did, where they read the same, and the checker's refusal was a traceback."""
    buffers = (Buffer("x", SIZE, "input"), Buffer("y", SIZE, output=True), Buffer("z", SIZE, output=True))
    problem = instance(buffers, (loop("g", (0,), (1,), (0, 1)), loop("h", (0,), (2,), (0, 1))))
    assert assert_agrees(problem) == "OPTIMAL"
    (kernel,) = solve(problem, replace(OPTIONS, solver="greedy")).solution.kernels
    assert kernel.scheme == ROWS


@pytest.mark.spread(2)
@pytest.mark.parametrize("donated", [False, True])
@pytest.mark.parametrize("output", [False, True])
def test_a_buffer_that_aliases_another_needs_no_memory(donated: bool, output: bool) -> None:
    """Columns that write one were left out of the joint model: "no schedule keeps the cap, proven"."""
    buffers = (Buffer("x", SIZE, "input", donated=donated), Buffer("y", SIZE, output=output, alias=0))
    problem = instance(buffers, (loop("add_", (0,), (1,)),))
    for cap in (None, SIZE, 2 * SIZE, SIZE - 1):
        found = replace(problem, rules=replace(problem.rules, peak_memory=cap))
        expected = "INFEASIBLE" if cap == SIZE - 1 else "OPTIMAL"
        assert assert_agrees(found) == assert_agrees(found, recompute=True) == expected


def test_one_kernel_in_two_schemes_that_take_different_buffers_is_two_columns() -> None:
    """They were one in the hint, CP-SAT refused the model, and nothing was said."""
    offers = (Offer(ROWS, (Read(0, SIZE),), (Write(1, SIZE),)), Offer(FLAT, (), (Write(1, SIZE),)))
    buffers = (Buffer("x", SIZE, "input", donated=True), Buffer("y", SIZE, output=True))
    problem = instance(buffers, (Op("one", "loop", offers),))
    assert assert_agrees(problem, recompute=True) == "OPTIMAL"
    assert assert_agrees(capped(problem, 100)) == "OPTIMAL"


def test_a_buffer_of_two_writers_is_cut_out_for_its_own_users() -> None:
    """One writer's block wrote it for the users of the other, at a price that was then a bound."""
    buffers = (Buffer("x", SIZE, "input"), Buffer("v", SIZE), Buffer("out", SIZE, output=True))
    ops = (loop("first", (0,), (1,)), loop("second", (0,), (1,)), loop("user", (1,), (2,), (0,)))
    problem = instance(buffers, ops, Edge(0, 2, 1), limits=Limits(max_ops=1))
    assert assert_agrees(problem) == "OPTIMAL"
    assert best_cost(problem, recompute=False) == solve(problem, OPTIONS).bound


def test_the_peak_counts_a_storage_once_that_a_kernel_reads_and_writes() -> None:
    """The bound without search counted a donated input that is written in place twice."""
    buffers = (Buffer("x", SIZE, "input", donated=True),)
    problem = instance(buffers, (loop("inc", (0,), (0,)),))
    problem = replace(problem, rules=replace(problem.rules, peak_memory=SIZE))
    assert assert_agrees(problem) == assert_agrees(problem, recompute=True) == "OPTIMAL"


def test_a_written_input_is_priced_as_memory_though_the_cache_is_no_faster() -> None:
    """Where both rates were equal a write to an input took the price of writes that stay in the cache."""
    device = replace(DEVICE, l2_ps_per_mib=DEVICE.dram_ps_per_mib, l2_write_ps_per_mib=1)
    problem = replace(instance((Buffer("x", SIZE, "input"),), (loop("inc", (0,), (0,)),)), devices=(device,))
    assert assert_agrees(problem) == "OPTIMAL"
    assert solve(problem, OPTIONS).objective == DEVICE.launch_ps + 2 * (SIZE * DEVICE.dram_ps_per_mib >> 20)
