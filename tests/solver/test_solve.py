"""The whole solve: certificates that hold, answers that check, limits that are kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import pytest
from hypothesis import given, settings

from optfuse.errors import IllegalKernelError, InfeasibleError, InvalidInstanceError
from optfuse.problem.checker import check
from optfuse.problem.instance import Edge, Instance, Rules
from optfuse.solver.baseline.exhaustive import exhaustive
from optfuse.solver.control.options import SolveOptions, Solver
from optfuse.solver.result import SolveResult
from optfuse.solver.solve import solve
from tests.problem.cases import ADD, MATMUL, SCALE, SHIFT, example
from tests.strategies import instances, share


def options(solver: Solver, order: Literal["memory", "program"] = "memory") -> SolveOptions:
    return SolveOptions(solver=solver, workers=1, deterministic=True, order=order)


def assert_sound(instance: Instance, result: SolveResult) -> None:
    assert check(instance, result.solution) == ()
    assert result.solution.objective == result.objective
    assert result.bound <= result.objective <= result.greedy_objective == result.greedy_solution.objective
    assert (result.status == "OPTIMAL") == (result.bound == result.objective)
    assert result.gap == pytest.approx((result.objective - result.bound) / max(1, result.objective))
    assert result.statistics.order_bound <= result.solution.peak_bytes
    assert result.statistics.arena_bound <= result.solution.arena_bytes


@settings(max_examples=share(25), deadline=None, derandomize=True)
@given(instances(variants=True, rules=True, max_ops=7))
def test_every_solver_is_sound_and_their_bounds_are_true(instance: Instance) -> None:
    optimum = exhaustive(instance).solution
    assert optimum is not None
    for solver in get_args(Solver):
        result = solve(instance, options(solver))
        assert_sound(instance, result)
        assert result.bound <= optimum.objective <= result.objective
        if solver != "greedy":
            assert result.status == "OPTIMAL"
            assert result.gap == 0.0


def test_the_result_says_what_was_done() -> None:
    result = solve(example(), options("cpsat"))
    assert result.seed == 0
    assert dict(result.versions).keys() >= {"python", "ortools"}
    assert result.statistics.blocks >= 1
    assert result.statistics.order_proven
    assert result.statistics.given_up == ()
    assert 0 < result.statistics.greedy_s < result.statistics.wall_s


def test_program_order_is_kept_when_asked_for() -> None:
    result = solve(example(), options("greedy", order="program"))
    firsts = [kernel.ops[0] for kernel in result.solution.kernels]
    assert firsts == sorted(firsts)


@pytest.mark.parametrize("solver", get_args(Solver))
def test_an_instance_without_ops(solver: Solver) -> None:
    empty = replace(example(), ops=(), edges=(), buffers=example().buffers[:2])
    result = solve(empty, options(solver))
    assert (result.status, result.objective, result.solution.kernels) == ("OPTIMAL", 0, ())


def test_invalid_instances_are_refused() -> None:
    with pytest.raises(InvalidInstanceError, match="cycle"):
        solve(replace(example(), edges=(*example().edges, Edge(ADD, SCALE))), options("greedy"))


def test_impossible_rules_are_refused() -> None:
    with pytest.raises(IllegalKernelError, match="shift, matmul"):
        solve(replace(example(), rules=Rules(fuse=((SHIFT, MATMUL),))), options("greedy"))


@pytest.mark.parametrize("solver", get_args(Solver))
def test_the_memory_cap(solver: Solver) -> None:
    free = solve(example(), options(solver))
    roomy = replace(example(), rules=Rules(peak_memory=free.solution.peak_bytes))
    assert solve(roomy, options(solver)).objective == free.objective
    with pytest.raises(InfeasibleError, match="raise the cap"):
        solve(replace(example(), rules=Rules(peak_memory=1)), options(solver))


@pytest.mark.parametrize("solver", get_args(Solver))
def test_without_time_the_answer_is_still_sound(solver: Solver) -> None:
    assert_sound(example(), solve(example(), SolveOptions(solver=solver, time_limit=1e-6, workers=1)))
