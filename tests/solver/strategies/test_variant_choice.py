"""Variants decided before the solve: what is left is a valid problem, and no decision beats the joint optimum."""

from __future__ import annotations

import time
from itertools import product

from hypothesis import HealthCheck, assume, given, settings

from optfuse.problem.instance import Instance
from optfuse.problem.validate import validate
from optfuse.solver.baseline.exhaustive import exhaustive
from optfuse.solver.baseline.greedy import greedy
from optfuse.solver.bounds.cost_bound import cost_bound
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.memory.assemble import assemble
from optfuse.solver.strategies.variant_choice import classes, decide
from optfuse.solver.variant_search import choose, solve_variants
from tests.strategies import instances, share

QUIET = settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
ONE_WORKER = SolveOptions(workers=1, deterministic=True)


def optimum(instance: Instance) -> int:
    solution = exhaustive(instance).solution
    assert solution is not None
    return solution.objective


@settings(QUIET, max_examples=share(40))
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


@settings(QUIET, max_examples=share(40))
@given(instances(min_ops=4, max_ops=7, variants=True))
def test_a_descent_is_a_solution(instance: Instance) -> None:
    found = choose(instance, ONE_WORKER, time.monotonic() + 60)
    assert assemble(instance, found.kernels).objective == found.cost >= optimum(instance)
    assert sorted(number for group in classes(instance) for number in group) == list(range(len(instance.variants)))


@settings(QUIET, max_examples=share(30))
@given(instances(min_ops=4, max_ops=7, variants=True))
def test_large_blocks_are_decided_class_by_class(instance: Instance) -> None:
    assume(instance.variants)
    floor, deadline = cost_bound(instance), time.monotonic() + 20
    outcome = solve_variants(instance, ONE_WORKER, greedy(instance), floor, deadline, joint_ops=0, most_choices=0)
    assert outcome.bound <= optimum(instance) <= outcome.objective
    assert any("class by class" in line for line in outcome.given_up)
