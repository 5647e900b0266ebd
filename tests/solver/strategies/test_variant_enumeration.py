"""Variants decided before the solve: what is left is a valid problem, and no decision beats the joint optimum."""

from __future__ import annotations

from itertools import product

from hypothesis import HealthCheck, assume, given, settings

from optfuse.problem.instance import Instance
from optfuse.problem.validate import validate
from optfuse.solver.baseline.exhaustive import exhaustive
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.strategies.variant_enumeration import decide
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
