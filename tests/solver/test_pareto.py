"""The sweep of memory caps: every point keeps its cap, costs never fall with the cap, and bounds are true."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from optfuse.errors import InvalidOptionError
from optfuse.problem.checker import check
from optfuse.problem.instance import Instance
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.pareto import sweep
from tests.rematerial import MIB, SMALL, masked, rematerial

QUICK = SolveOptions(workers=1, time_limit=10)


@settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), max_examples=15)
@given(rematerial(3, 5))
def test_points_keep_their_caps(instance: Instance) -> None:
    points = sweep(instance, QUICK, points=4).points
    assert points[0].status == "OPTIMAL"
    found = [point for point in points if point.solution is not None]
    for point in found:
        assert point.solution is not None
        assert check(instance, point.solution) == ()
        assert point.solution.peak_bytes <= point.cap
        assert point.bound <= point.solution.objective
    objectives = [point.solution.objective for point in found if point.solution is not None]
    assert objectives == sorted(objectives)
    assert [point.bound for point in points] == sorted(point.bound for point in points)


def test_copies_reach_further_down() -> None:
    apart, copied = sweep(masked(), QUICK, 3), sweep(masked(), replace(QUICK, recompute=True), 3)
    assert apart.floor == 6 * MIB + SMALL
    assert copied.floor == 4 * MIB + SMALL
    assert copied.points[-1].solution is not None
    assert copied.points[-1].solution.peak_bytes < apart.floor


def test_too_few_points_are_refused() -> None:
    with pytest.raises(InvalidOptionError, match="at least 2"):
        sweep(masked(), QUICK, 1)
