"""A memory cap in ``solve``: what is promised of the answer, and what is said where there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optfuse.errors import InfeasibleError, InvalidOptionError
from optfuse.problem.checker import check
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.solve import solve
from tests.rematerial import MIB, SMALL, masked

QUICK = SolveOptions(workers=1, time_limit=10)
CAP = 4 * MIB + 4 * SMALL


def test_the_answer_is_one_to_the_instance_without_the_cap() -> None:
    result = solve(masked(), replace(QUICK, peak_memory=CAP, recompute=True))
    assert result.status == "OPTIMAL"
    assert result.solution.peak_bytes <= CAP
    assert check(masked(), result.solution) == ()


def test_a_cap_that_binds_nothing_changes_nothing() -> None:
    free = solve(masked(), QUICK)
    capped = solve(masked(), replace(QUICK, peak_memory=free.solution.peak_bytes))
    assert (capped.status, capped.objective, capped.bound) == (free.status, free.objective, free.bound)


@pytest.mark.parametrize("solver", ["cpsat", "greedy", "exhaustive"])
def test_a_cap_below_what_any_schedule_needs(solver: str) -> None:
    with pytest.raises(InfeasibleError):
        solve(masked(), SolveOptions(solver=solver, workers=1, time_limit=10, peak_memory=CAP))  # type: ignore[arg-type]


def test_the_least_that_can_be_met_can_be_met() -> None:
    with pytest.raises(InfeasibleError, match=f"the least that can be met is {6 * MIB + SMALL} bytes") as caught:
        solve(masked(), replace(QUICK, peak_memory=CAP))
    assert caught.value.proven
    assert solve(masked(), replace(QUICK, peak_memory=6 * MIB + SMALL)).solution.peak_bytes == 6 * MIB + SMALL


def test_the_same_answer_twice() -> None:
    options = replace(QUICK, deterministic=True, peak_memory=CAP, recompute=True)
    assert solve(masked(), options).solution == solve(masked(), options).solution


def test_the_order_is_not_the_programs() -> None:
    with pytest.raises(InvalidOptionError, match="order"):
        solve(masked(), replace(QUICK, peak_memory=CAP, order="program"))
