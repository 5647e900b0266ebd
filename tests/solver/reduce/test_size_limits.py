"""Limits on a kernel's size: what is said without them still holds with them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optfuse.problem.cost import kernel_cost
from optfuse.problem.instance import Buffer, Edge, Instance, Limits, Offer, Op, Read, Scheme, Write
from optfuse.problem.legality import is_legal
from optfuse.solver.baseline.exhaustive import exhaustive
from optfuse.solver.baseline.greedy import greedy
from optfuse.solver.bounds.block_bound import block_bound
from optfuse.solver.memory.assemble import assemble
from optfuse.solver.reduce.size_limits import (
    cut_to_size,
    fewest_kernels,
    fits,
    launches,
    without_launches,
    without_limits,
)
from tests.layered import build, layered
from tests.strategies import DEVICE, instances, share

QUIET = settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


def narrow(instance: Instance, most: int, heaviest: int = 1 << 30) -> Instance:
    return replace(instance, limits=replace(instance.limits, max_ops=most, max_weight=heaviest))


@settings(QUIET, max_examples=share(80))
@given(instances(min_ops=3, max_ops=8, variants=True), st.integers(1, 4), st.sampled_from([2, 5, 1 << 30]))
def test_no_solution_has_fewer_kernels(instance: Instance, most: int, heaviest: int) -> None:
    """With launches dear enough, the cheapest solution is the one of fewest kernels."""
    instance = narrow(instance, most, heaviest)
    dear = tuple(replace(device, launch_ps=1 << 40) for device in instance.devices)
    solution = exhaustive(replace(instance, devices=dear)).solution
    assert solution is not None
    assert fewest_kernels(instance) <= len(solution.kernels)


def test_no_solution_is_below_the_floor() -> None:
    examples, handed_on = share(150), list[bool]()

    @settings(QUIET, max_examples=examples)
    @given(st.one_of(layered(4, 8), instances(min_ops=3, max_ops=7, variants=True)), st.integers(1, 4))
    def check(instance: Instance, most: int) -> None:
        instance = narrow(instance, most)
        solution = exhaustive(instance).solution
        assert solution is not None
        floor = block_bound(instance)
        assert floor <= solution.objective
        wide = block_bound(without_limits(instance))
        handed_on.append(floor - wide > launches(instance) - launches(without_limits(instance)))

    check()
    assert sum(handed_on) > examples / 30


def test_the_floor_of_a_chain_is_its_cost() -> None:
    """Each op adds one to what the one before made: with two ops a kernel, every other value is handed on."""
    buffers = (Buffer("in", 1 << 20, "input"), *(Buffer(f"b{k}", 1 << 20, output=k == 7) for k in range(8)))
    ops = tuple(Op(f"op{k}", "loop", (Offer(1, (Read(k, 1 << 20),), (Write(k + 1, 1 << 20),)),)) for k in range(8))
    edges = tuple(Edge(k, k + 1, k + 1, (1,)) for k in range(7))
    schemes = (Scheme("alone", 1), Scheme("flat", 1 << 18, parallel=1024))
    chain = Instance("chain", (DEVICE,), schemes, buffers, ops, edges, limits=Limits(max_ops=2))
    solution = exhaustive(chain).solution
    assert solution is not None
    assert block_bound(chain) == solution.objective


def test_a_chain_needs_as_many_kernels_as_it_fills() -> None:
    chain = narrow(build(4, 9), 1)
    assert fewest_kernels(chain) == 9


@settings(QUIET, max_examples=share(80))
@given(layered(5, 9), st.integers(1, 4))
def test_a_launch_for_each_kernel_beside_what_all_else_costs_is_a_bound(instance: Instance, most: int) -> None:
    instance = narrow(instance, most)
    best, free = exhaustive(instance).solution, exhaustive(without_launches(without_limits(instance))).solution
    assert best is not None
    assert free is not None
    assert free.objective + launches(instance) <= best.objective


@settings(QUIET, max_examples=share(80))
@given(layered(8, 30), st.integers(1, 6))
def test_kernels_cut_to_size_are_a_solution(instance: Instance, most: int) -> None:
    wide = greedy(replace(instance, limits=Limits(64, connected=instance.limits.connected)))
    small = narrow(instance, most)
    cut = cut_to_size(small, [(kernel.ops, kernel.scheme) for kernel in wide.kernels])
    assert all(fits(small, ops) and is_legal(small, ops, scheme) for ops, scheme in cut)
    # Assembling orders the kernels, which fails on a cycle.
    solution = assemble(small, cut)
    assert solution.objective == sum(kernel_cost(small, ops, scheme) for ops, scheme in cut)
    if all(fits(small, kernel.ops) for kernel in wide.kernels):
        assert len(cut) == len(wide.kernels)


def test_cutting_keeps_what_fits() -> None:
    instance = narrow(build(7, 20), 3)
    kernels = [(kernel.ops, kernel.scheme) for kernel in greedy(instance).kernels]
    assert cut_to_size(instance, kernels) == kernels


def test_without_launches_no_op_makes_one_dearer() -> None:
    plain = build(0, 7)
    dearer = replace(plain, ops=tuple(replace(op, launch_ps=1000) for op in plain.ops))
    assert kernel_cost(dearer, (0,), plain.ops[0].offers[0].scheme) > 1000
    assert without_launches(dearer) == without_launches(plain)
