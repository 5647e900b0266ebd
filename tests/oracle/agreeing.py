"""A solve beside the oracles: exhaustive search, the checker, and prices from the page of the format."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from optfuse.errors import IllegalKernelError, InfeasibleError, RuleConflictError
from optfuse.problem.checker import check
from optfuse.problem.instance import Instance
from optfuse.problem.serialize import instance_to_json, solution_to_json
from optfuse.solver.baseline.exhaustive import exhaustive
from optfuse.solver.baseline.greedy import greedy
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.solve import solve
from tests.oracle import prices

LEAST = 1 << 20


def capped(instance: Instance, percent: int) -> Instance:
    """The instance under a cap between what its inputs take and the peak of greedy's schedule, and a little above."""
    inputs = sum(buffer.bytes for buffer in instance.buffers if buffer.kind != "temporary" and buffer.alias is None)
    try:
        highest = greedy(instance).peak_bytes
    except IllegalKernelError:  # the rules leave no schedule
        highest = inputs + LEAST
    cap = inputs + (highest - inputs) * percent // 100
    return replace(instance, rules=replace(instance.rules, peak_memory=max(0, cap)))


def best_cost(instance: Instance, *, recompute: bool) -> int | None:
    """The least cost of any schedule, by trying all of them; None when there is none."""
    try:
        outcome = exhaustive(instance, recompute=recompute)
    except InfeasibleError:
        return None
    assert outcome.complete
    assert outcome.solution is not None
    assert check(instance, outcome.solution) == ()
    return outcome.solution.objective


def price_of(instance: Instance, solution: object) -> int:
    """The price of a solution as the page of the format says it."""
    return prices.objective(json.loads(instance_to_json(instance)), json.loads(solution_to_json(solution)))  # type: ignore[arg-type]


def assert_agrees(instance: Instance, *, recompute: bool = False) -> str:
    """Solve, and hold the status, the objective, the bound and the solution against the oracles. Returns the status."""
    options = SolveOptions(workers=1, deterministic=True, time_limit=20, recompute=recompute)
    least = best_cost(instance, recompute=recompute)
    if least is None:
        with pytest.raises((InfeasibleError, RuleConflictError)) as refused:
            solve(instance, options)
        assert isinstance(refused.value, RuleConflictError) or refused.value.proven
        return "CONFLICT" if isinstance(refused.value, RuleConflictError) else "INFEASIBLE"
    result = solve(instance, options)
    assert check(instance, result.solution) == ()
    assert check(instance, result.greedy_solution) == () or instance.rules.peak_memory is not None
    assert result.objective == price_of(instance, result.solution) == least
    assert result.bound == least
    assert not any(line.startswith("checker") for line in result.statistics.given_up)
    return result.status
