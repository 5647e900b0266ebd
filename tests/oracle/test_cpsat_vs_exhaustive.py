"""CP-SAT against the exhaustive solver: equal, proven, and never above the warm start; bounds true when cut short."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from optfuse.problem.cost import kernel_cost
from optfuse.problem.instance import Instance
from optfuse.problem.legality import is_legal
from optfuse.solver.baseline.exhaustive import exhaustive
from optfuse.solver.baseline.greedy import greedy
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.memory.assemble import assemble
from optfuse.solver.solve_blocks import CpsatOutcome, solve_cpsat
from optfuse.solver.strategies.block import MOST_LISTED
from tests.layered import layered
from tests.strategies import instances, share

QUIET = settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
ONE_WORKER = SolveOptions(workers=1, deterministic=True)


def solved(instance: Instance, seconds: float = 60.0, listed: int = MOST_LISTED) -> CpsatOutcome:
    """Solve, and check what must hold of every outcome."""
    warm = greedy(instance)
    outcome = solve_cpsat(instance, ONE_WORKER, warm, time.monotonic() + seconds, listed=listed)
    assert outcome.bound <= outcome.objective <= warm.objective
    assert outcome.proven == (outcome.bound == outcome.objective)
    assert outcome.objective == sum(kernel_cost(instance, k.ops, k.scheme, k.writes) for k in outcome.kernels)
    assert all(is_legal(instance, kernel.ops, kernel.scheme) for kernel in outcome.kernels)
    # Assembling orders the kernels, which fails on a cycle, and prices them.
    assert assemble(instance, [(k.ops, k.scheme) for k in outcome.kernels]).objective == outcome.objective
    return outcome


def optimum(instance: Instance) -> int:
    solution = exhaustive(instance).solution
    assert solution is not None
    return solution.objective


def assert_optimal(instance: Instance) -> None:
    outcome = solved(instance)
    assert outcome.proven
    assert outcome.objective == optimum(instance)
    assert not outcome.given_up


@settings(QUIET, max_examples=share(250))
@given(instances(min_ops=3, max_ops=9))
def test_odd_problems(instance: Instance) -> None:
    assert_optimal(instance)


@settings(QUIET, max_examples=share(150))
@given(instances(min_ops=3, max_ops=8, variants=True, rules=True))
def test_problems_with_variants_and_rules(instance: Instance) -> None:
    assert_optimal(instance)


@settings(QUIET, max_examples=share(60))
@given(layered(5, 9))
def test_problems_of_a_device_whose_memory_ramps_up(instance: Instance) -> None:
    devices = tuple(replace(device, ramp_ps=700_000, l2_write_ps_per_mib=300_000) for device in instance.devices)
    assert_optimal(replace(instance, devices=devices))


@settings(QUIET, max_examples=share(250))
@given(layered(5, 9))
def test_layered_problems(instance: Instance) -> None:
    assert_optimal(instance)


@pytest.mark.spread(3)
@pytest.mark.parametrize("limit", [1, 10, 14])
def test_bounds_are_true_when_candidates_are_not_all_listed(limit: int) -> None:
    @settings(QUIET, max_examples=share(40))
    @given(layered(6, 9))
    def check(instance: Instance) -> None:
        outcome = solved(instance, listed=limit)
        assert outcome.bound <= optimum(instance) <= outcome.objective
        assert outcome.proven == (not outcome.given_up)

    check()


@pytest.mark.spread(3)
@pytest.mark.parametrize("seconds", [0.0, 0.002, 0.01])
def test_bounds_are_true_when_time_runs_out(seconds: float) -> None:
    @settings(QUIET, max_examples=share(40))
    @given(instances(min_ops=5, max_ops=8, variants=True, rules=True))
    def check(instance: Instance) -> None:
        outcome = solved(instance, seconds)
        assert outcome.bound <= optimum(instance) <= outcome.objective

    check()
