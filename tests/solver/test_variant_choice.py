"""Variants decided before the solve: what is left is a valid problem, and no decision beats the joint optimum."""

from __future__ import annotations

import time
from itertools import product

import pytest
from hypothesis import HealthCheck, assume, given, settings

from optfuse.problem.instance import Instance
from optfuse.problem.validate import validate
from optfuse.solver.baseline.exhaustive import exhaustive
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.memory.assemble import assemble
from optfuse.solver.solve import solve
from optfuse.solver.strategies.variant_choice import classes, decide
from optfuse.solver.variant_search import choose
from tests.strategies import instances

QUIET = settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
ONE_WORKER = SolveOptions(workers=1, deterministic=True)


def optimum(instance: Instance) -> int:
    solution = exhaustive(instance).solution
    assert solution is not None
    return solution.objective


@settings(QUIET, max_examples=40)
@given(instances(min_ops=4, max_ops=7, variants=True, rules=True))
def test_the_best_of_all_decisions_is_the_optimum(instance: Instance) -> None:
    assume(instance.variants)
    decisions = product(*(range(len(variant.alternatives)) for variant in instance.variants))
    best = []
    for chosen in decisions:
        decided = decide(instance, chosen)
        validate(decided.instance)
        best.append(optimum(decided.instance))
    assert min(best) == optimum(instance)


@settings(QUIET, max_examples=40)
@given(instances(min_ops=4, max_ops=7, variants=True))
def test_a_descent_is_a_solution(instance: Instance) -> None:
    found = choose(instance, ONE_WORKER, time.monotonic() + 60)
    assert assemble(instance, found.kernels).objective == found.cost >= optimum(instance)
    assert sorted(number for group in classes(instance) for number in group) == list(range(len(instance.variants)))


def test_large_blocks_are_decided_class_by_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optfuse.solver.variant_search.JOINT_OPS", 0)

    @settings(QUIET, max_examples=30)
    @given(instances(min_ops=4, max_ops=7, variants=True))
    def check(instance: Instance) -> None:
        assume(instance.variants)
        result = solve(instance, SolveOptions(workers=1, time_limit=20))
        assert result.bound <= optimum(instance) <= result.objective
        assert any("class by class" in line for line in result.statistics.given_up)

    check()
