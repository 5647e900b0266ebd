"""Presolve keeps the optimum, and merges as much as it can."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optfuse.errors import InfeasibleError
from optfuse.problem.instance import Buffer, Edge, Instance, Limits, Offer, Op, Read, Scheme, Work, Write
from optfuse.problem.legality import is_legal
from optfuse.problem.op_masks import bits
from optfuse.problem.presolve import presolve
from optfuse.problem.presolve_scheme import SchemeIndex
from optfuse.solver.baseline.exhaustive import exhaustive
from tests.layered import build, layered
from tests.strategies import DEVICE, instances, share

QUIET = settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


def optimum(instance: Instance) -> float:
    """The least cost, infinite where the rules leave no solution."""
    try:
        solution = exhaustive(instance).solution
    except InfeasibleError:
        return math.inf
    assert solution is not None
    return solution.objective


def seeded(seed: int) -> Instance:
    return build(seed, random.Random(seed).randint(6, 9))


@settings(QUIET, max_examples=share(150))
@given(layered(8, 9))
def test_the_optimum_of_layered_problems_is_kept(instance: Instance) -> None:
    reduced = presolve(instance).problem
    if reduced is not instance:
        assert optimum(reduced) == optimum(instance)


@settings(QUIET, max_examples=share(150))
@given(layered(8, 9), st.integers(0, 511), st.sampled_from([100_000, 1_900_000]))
def test_the_optimum_is_kept_where_ops_make_launches_dearer(instance: Instance, which: int, more: int) -> None:
    devices = tuple(replace(device, launch_ps=100_000) for device in instance.devices)
    ops = tuple(replace(op, launch_ps=more if which >> n & 1 else 0) for n, op in enumerate(instance.ops))
    instance = replace(instance, devices=devices, ops=ops)
    reduced = presolve(instance).problem
    if reduced is not instance:
        assert optimum(reduced) == optimum(instance)


def test_what_a_later_pass_computes_again_is_counted() -> None:
    """Two ops before a third one, which reads a reduction's result too: in its kernel they would run twice."""
    instance = build(4000, 9)
    instance = replace(instance, devices=tuple(replace(device, launch_ps=100_000) for device in instance.devices))
    reduced = presolve(instance).problem
    assert reduced is not instance
    assert optimum(reduced) == optimum(instance)


@settings(QUIET, max_examples=share(150))
@given(instances(min_ops=8, max_ops=8, rules=True))
def test_the_optimum_of_odd_problems_is_kept(instance: Instance) -> None:
    reduced = presolve(instance).problem
    if reduced is not instance:
        assert optimum(reduced) == optimum(instance)


@pytest.mark.parametrize("most", [2, 3, 4, 5])
def test_there_is_room_only_where_no_kernel_around_the_host_is_full(most: int) -> None:
    told = 0
    for seed in range(40):
        instance = replace(seeded(seed), limits=Limits(most))
        for scheme in range(1, len(instance.schemes)):
            index = SchemeIndex(instance, scheme)
            kernels = [
                ops for mask in range(1 << len(instance.ops)) if is_legal(instance, ops := tuple(bits(mask)), scheme)
            ]
            for host in {op for ops in kernels for op in ops}:
                guests = [op for op in range(len(instance.ops)) if index.has_room(1 << host, 1 << op)]
                told += len(guests)
                assert all(set(ops).issuperset(guests) for ops in kernels if host in ops and len(ops) == most)
    assert told > 100


@settings(QUIET, max_examples=share(150))
@given(layered(8, 9), st.sampled_from([20_000, 300_000, 2_000_000]))
def test_slack_costs_no_more_than_is_said(instance: Instance, slack: int) -> None:
    reduced = presolve(instance, slack=slack)
    if reduced.problem is not instance:
        assert optimum(instance) <= optimum(reduced.problem) <= optimum(instance) + reduced.loss


def test_slack_ties_more_at_a_price() -> None:
    exact = [presolve(seeded(seed)) for seed in range(60)]
    loose = [presolve(seeded(seed), slack=300_000) for seed in range(60)]
    ties = [sum(len(found.problem.rules.fuse) for found in each) for each in (exact, loose)]
    assert ties[1] > ties[0] + 10
    assert all(found.loss == 0 for found in exact)
    dearer = [optimum(one.problem) > optimum(seeded(seed)) for seed, one in enumerate(loose) if one.loss]
    assert any(dearer)


def offers(instance: Instance) -> int:
    return sum(len(op.offers) for op in instance.ops)


def test_it_fires_often_enough_to_be_worth_testing() -> None:
    pairs = [(seeded(seed), presolve(seeded(seed)).problem) for seed in range(100)]
    assert sum(len(after.rules.fuse) - len(before.rules.fuse) for before, after in pairs) > 100
    assert sum(offers(before) > offers(after) for before, after in pairs) > 20


def test_variants_are_left_alone() -> None:
    instance = instances(min_ops=6, max_ops=6, variants=True)

    @settings(QUIET, max_examples=share(30))
    @given(instance)
    def check(drawn: Instance) -> None:
        if drawn.variants:
            assert presolve(drawn).problem is drawn

    check()


def op(name: str, reads: dict[int, int], writes: dict[int, int], schemes: tuple[int, ...], fp32: int = 0) -> Op:
    return Op(
        name,
        "loop",
        tuple(
            Offer(
                scheme,
                tuple(Read(b, size, footprint=10 * b + scheme) for b, size in reads.items()),
                tuple(Write(b, size) for b, size in writes.items()),
            )
            for scheme in schemes
        ),
        Work(fp32=fp32),
    )


SCHEMES = (Scheme("alone", 1), Scheme("rows", 8192, parallel=8192), Scheme("flat", 8192, parallel=8192))


def a_group_that_holds_its_kernel_together() -> Instance:
    """U reads what A reads and what B reads; only V uses U, in a scheme that A and B do not offer."""
    names = (("a", "input"), ("b", "input"), ("x", "temporary"), ("y", "temporary"), ("u", "temporary"))
    buffers = (
        *(Buffer(name, 4096, kind, output=name in "xy") for name, kind in names),
        Buffer("v", 4096, output=True),
    )
    ops = (
        op("A", {0: 256}, {2: 4096}, (1,)),
        op("B", {1: 256}, {3: 4096}, (1,)),
        op("U", {0: 256, 1: 256}, {4: 4096}, (1, 2)),
        op("V", {4: 4096}, {5: 4096}, (2,)),
    )
    return Instance("holds", (DEVICE,), SCHEMES, buffers, ops, (Edge(2, 3, 4, (2,)),))


def a_group_whose_compute_hides_behind_memory() -> Instance:
    """U computes for long; V's compute costs nothing beside X and Y, which read much, but would lengthen U's kernel."""
    buffers = (
        Buffer("in", 1 << 20, "input"),
        Buffer("big", 8 << 20, "input"),
        Buffer("u", 1 << 20),
        Buffer("v", 1 << 20),
        Buffer("x", 1 << 20, output=True),
        Buffer("y", 1 << 20, output=True),
    )
    ops = (
        op("U", {0: 1 << 20}, {2: 1 << 20}, (1,), fp32=1 << 28),
        op("V", {2: 1 << 20}, {3: 1 << 20}, (1, 2), fp32=1 << 27),
        op("X", {3: 1 << 20, 1: 8 << 20}, {4: 1 << 20}, (2,)),
        op("Y", {3: 1 << 20, 1: 8 << 20}, {5: 1 << 20}, (2,)),
    )
    edges = (Edge(0, 1, 2, (1,)), Edge(1, 2, 3, (2,)), Edge(1, 3, 3, (2,)))
    return Instance("hides", (DEVICE,), SCHEMES, buffers, ops, edges)


@pytest.mark.parametrize(
    "instance",
    [
        pytest.param(a_group_that_holds_its_kernel_together(), id="connected"),
        pytest.param(a_group_whose_compute_hides_behind_memory(), id="memory bound"),
        pytest.param(seeded(20), id="room"),
        pytest.param(seeded(2), id="rise before"),
        pytest.param(seeded(24), id="rise after"),
        pytest.param(seeded(39), id="slowed"),
        pytest.param(seeded(10), id="neighbours"),
        pytest.param(seeded(14), id="only"),
        pytest.param(seeded(15), id="dominated"),
    ],
)
def test_the_optimum_is_kept_where_it_hangs_on_one_condition(instance: Instance) -> None:
    """Of each condition of a rule an instance that loses its optimum when presolve does not look at it."""
    assert optimum(presolve(instance).problem) == optimum(instance)


def test_no_rule_is_tried_after_the_deadline() -> None:
    assert presolve(seeded(0), deadline=0.0).problem.rules == seeded(0).rules
