"""The bound on every schedule's peak: never above the least peak, and equal to it where it is meant to be."""

from __future__ import annotations

import time

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optfuse.problem.instance import Instance
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.joint.columns import list_columns
from optfuse.solver.joint.feasible_columns import feasible_columns
from optfuse.solver.joint.joint import solve_joint
from optfuse.solver.joint.memory_cap import in_order
from optfuse.solver.joint.peak_bound import least_peak_bound
from optfuse.solver.joint.scope import whole_scope
from tests.layered import layered
from tests.rematerial import MIB, SMALL, masked, rematerial
from tests.strategies import instances, share

QUIET = settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


def least_peak(instance: Instance, *, recompute: bool) -> int:
    scope = whole_scope(instance, recompute=recompute)
    columns = feasible_columns(scope, list_columns(instance, scope.ops, scope.recomputable).columns)
    options = SolveOptions(workers=1, deterministic=True)
    found = solve_joint(scope, columns, options, time.monotonic() + 60, least_peak=True)
    assert found.proven
    assert found.columns is not None
    assert found.bound == in_order(instance, [column.kernel for column in found.columns]).peak_bytes
    return found.bound


@settings(QUIET, max_examples=share(120))
@given(st.one_of(rematerial(2, 6), instances(max_ops=6, variants=True), layered(4, 7)), st.booleans())
def test_never_above_the_least_peak(instance: Instance, recompute: bool) -> None:
    bound = least_peak_bound(instance, recompute=recompute)
    assert bound <= least_peak(instance, recompute=recompute)
    assert least_peak_bound(instance, recompute=recompute, looks=1) <= bound


def test_a_value_passes_a_library_call_unless_it_can_be_made_again() -> None:
    instance = masked()
    assert least_peak_bound(instance) == least_peak(instance, recompute=False) == 6 * MIB + SMALL
    assert least_peak_bound(instance, recompute=True) == least_peak(instance, recompute=True) == 4 * MIB + SMALL


def test_columns_stop_after_so_many_sets() -> None:
    instance = masked()
    every = list_columns(instance, (1 << len(instance.ops)) - 1)
    assert every.complete
    few = list_columns(instance, (1 << len(instance.ops)) - 1, max_steps=every.steps // 2)
    assert not few.complete
    assert few.steps == every.steps // 2 + 1
    assert set(few.columns) < set(every.columns)
