"""The joint model against the exhaustive solver: partition, order and copies together, under a cap on memory."""

from __future__ import annotations

import time
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optfuse.errors import InfeasibleError
from optfuse.problem.checker import check
from optfuse.problem.instance import Instance
from optfuse.solver.baseline.exhaustive import exhaustive
from optfuse.solver.baseline.greedy import greedy
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.joint.columns import ColumnBuilder, list_columns
from optfuse.solver.joint.feasible_columns import feasible_columns, least_live_bytes
from optfuse.solver.joint.joint import JointResult, solve_joint
from optfuse.solver.joint.memory_cap import in_order
from optfuse.solver.joint.scope import whole_scope
from tests.layered import layered
from tests.rematerial import MIB, SMALL, masked, rematerial
from tests.strategies import instances, share

#: Two large values and all small ones of ``masked``.
CAP = 4 * MIB + 4 * SMALL
QUIET = settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
ONE_WORKER = SolveOptions(workers=1, deterministic=True)


def joint(instance: Instance, cap: int | None, *, recompute: bool = False) -> JointResult:
    scope = whole_scope(instance, recompute=recompute)
    pool = list_columns(instance, scope.ops, scope.recomputable)
    assert pool.complete
    if cap is not None and scope.base > cap:
        return JointResult(None, 0, proven=False, infeasible=True)
    columns = feasible_columns(scope, pool.columns, cap)
    return solve_joint(scope, columns, ONE_WORKER, time.monotonic() + 60, cap=cap)


def assert_agrees(instance: Instance, cap: int | None, *, recompute: bool = False) -> None:
    instance = replace(instance, rules=replace(instance.rules, peak_memory=cap))
    found = joint(instance, cap, recompute=recompute)
    try:
        oracle = exhaustive(instance, recompute=recompute).solution
    except InfeasibleError:
        assert found.infeasible
        return
    assert oracle is not None
    assert found.columns is not None
    assert found.proven
    assert sum(column.cost for column in found.columns) == found.bound == oracle.objective
    # The order that the model found is one that the checker accepts, within the cap.
    solution = in_order(instance, [column.kernel for column in found.columns])
    assert check(instance, solution) == ()


PROBLEMS = st.one_of(instances(min_ops=3, max_ops=7, variants=True, rules=True), layered(4, 7))


@settings(QUIET, max_examples=share(100))
@given(PROBLEMS, st.integers(30, 100))
def test_partition_and_order_under_a_cap(instance: Instance, percent: int) -> None:
    assert_agrees(instance, greedy(instance).peak_bytes * percent // 100)


@settings(QUIET, max_examples=share(100))
@given(instances(min_ops=3, max_ops=5, recompute=True, rules=True))
def test_copies(instance: Instance) -> None:
    assert_agrees(instance, None, recompute=True)


@settings(QUIET, max_examples=share(100))
@given(instances(min_ops=3, max_ops=5, recompute=True, variants=True), st.integers(30, 100))
def test_copies_under_a_cap(instance: Instance, percent: int) -> None:
    assert_agrees(instance, greedy(instance).peak_bytes * percent // 100, recompute=True)


def least(instance: Instance) -> int:
    """Bytes without which some op cannot run alone."""
    scope, maker = whole_scope(instance), ColumnBuilder(instance)
    alone = [
        min(least_live_bytes(scope, c) for scheme in maker.index.offers[op] for c in maker.columns(1 << op, scheme))
        for op in range(len(instance.ops))
    ]
    return max(alone)


@settings(QUIET, max_examples=share(50))
@given(rematerial(3, 5), st.integers(-20, 100))
def test_copies_that_pay_under_a_cap(instance: Instance, percent: int) -> None:
    low, high = least(instance), greedy(instance).peak_bytes
    assert_agrees(instance, low + (high - low) * percent // 100, recompute=True)


def test_a_cap_that_only_a_copy_can_keep() -> None:
    """mask(small) is used before and after a library call that needs room: computing it twice saves its bytes."""
    instance = masked()
    apart = joint(instance, CAP)
    assert apart.infeasible
    found = joint(instance, CAP, recompute=True)
    assert found.columns is not None
    assert sum(column.mask & 1 for column in found.columns) == 2
    assert_agrees(instance, CAP, recompute=True)
