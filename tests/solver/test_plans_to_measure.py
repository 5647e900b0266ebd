"""Other plans worth running: valid, distinct, priced by the model as it is, the cheapest first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from optfuse.problem.checker import check
from optfuse.problem.instance import Instance
from optfuse.problem.serialize import load_instance
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.plans_to_measure import near_plans
from optfuse.solver.result import SolveResult
from optfuse.solver.solve import solve

OPTIONS = SolveOptions(workers=1, deterministic=True, time_limit=20)
LIBRARY = Path(__file__).parent.parent.parent / "instances"


@pytest.fixture(scope="module")
def solved() -> tuple[Instance, SolveResult]:
    instance = load_instance(LIBRARY / "cross_entropy.backward.json.gz")
    return instance, solve(instance, OPTIONS)


def test_plans_are_valid_and_the_cheapest_come_first(solved: tuple[Instance, SolveResult]) -> None:
    instance, result = solved
    plans = near_plans(instance, result, OPTIONS, 6)
    assert plans[0].origin == "best"
    assert plans[0].solution == result.solution
    prices = [plan.solution.objective for plan in plans]
    assert len(plans) > 2
    assert prices == sorted(prices)
    for plan in plans:
        assert check(instance, plan.solution) == (), plan.origin
    kernels = {frozenset((k.ops, k.scheme, k.writes) for k in plan.solution.kernels) for plan in plans}
    assert len(kernels) == len({plan.origin for plan in plans}) == len(plans)


def test_there_are_no_more_than_asked_for(solved: tuple[Instance, SolveResult]) -> None:
    instance, result = solved
    assert [plan.origin for plan in near_plans(instance, result, OPTIONS, 1)] == ["best"]
    two, many = near_plans(instance, result, OPTIONS, 2), near_plans(instance, result, OPTIONS, 6)
    assert two == many[:2]


def test_what_the_user_wants_together_stays_together(solved: tuple[Instance, SolveResult]) -> None:
    instance, result = solved
    wanted = next(kernel.ops for kernel in result.solution.kernels if len(kernel.ops) > 1)
    pair = (min(wanted), max(wanted))
    ruled = replace(instance, rules=replace(instance.rules, fuse=(pair,)))
    plans = near_plans(ruled, solve(ruled, OPTIONS), OPTIONS, 6)
    assert all(any(set(pair) <= set(kernel.ops) for kernel in plan.solution.kernels) for plan in plans)
