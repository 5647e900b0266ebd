"""A solve that ends at any moment: its answer is legal, its bound true, and it says what it gave up on."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optfuse.errors import InfeasibleError
from optfuse.problem.checker import check
from optfuse.problem.instance import Instance
from optfuse.solver.baseline.exhaustive import exhaustive
from optfuse.solver.baseline.greedy import greedy_partition
from optfuse.solver.control.clock import Clock
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.memory.assemble import assemble
from optfuse.solver.result import SolveResult
from optfuse.solver.solve import solve
from tests.layered import build
from tests.strategies import instances, share


class AtLook(threading.Event):
    """An event that is set from the n-th look on."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.left = looks

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0


def assert_sound(instance: Instance, result: SolveResult) -> None:
    assert check(instance, result.solution) == ()
    assert check(instance, result.greedy_solution) == ()
    assert result.bound <= result.objective == result.solution.objective <= result.greedy_objective
    assert (result.status == "OPTIMAL") == (result.bound == result.objective)


def optimum(instance: Instance) -> int:
    solution = exhaustive(instance).solution
    assert solution is not None
    return solution.objective


@settings(max_examples=share(150), deadline=None, derandomize=True)
@given(instances(max_ops=7, variants=True, rules=True), st.integers(0, 60))
def test_stopped_at_any_look(instance: Instance, looks: int) -> None:
    stop = AtLook(looks)
    result = solve(instance, SolveOptions(workers=1, time_limit=60), stop=stop)
    assert_sound(instance, result)
    assert result.bound <= optimum(instance)
    if result.status == "FEASIBLE":
        assert result.statistics.given_up


@settings(max_examples=share(60), deadline=None, derandomize=True)
@given(instances(max_ops=7, rules=True), st.integers(0, 60), st.booleans())
def test_stopped_at_any_look_under_a_cap(instance: Instance, looks: int, recompute: bool) -> None:
    whole = solve(instance, SolveOptions(workers=1, time_limit=60))
    cap = max(1, whole.solution.peak_bytes)
    options = SolveOptions(workers=1, time_limit=60, peak_memory=cap, recompute=recompute)
    try:
        result = solve(instance, options, stop=AtLook(looks))
    except InfeasibleError as error:
        as_said = not error.proven  # the cap can be kept
    else:
        as_said = result.solution.peak_bytes <= cap
        assert_sound(instance, result)
    assert as_said


@settings(max_examples=share(50), deadline=None, derandomize=True)
@given(instances(max_ops=7, variants=True, rules=True))
def test_without_any_time(instance: Instance) -> None:
    result = solve(instance, SolveOptions(workers=1, time_limit=1e-9))
    assert_sound(instance, result)
    assert result.bound <= optimum(instance)
    assert "greedy: stopped before its rounds were over" in result.statistics.given_up


@pytest.mark.spread(4)
@pytest.mark.parametrize("looks", [0, 3, 10, 30, 100, 200, 400, 800])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_larger_one_stopped_on_its_way(looks: int, deterministic: bool) -> None:
    instance = build(5, 150)
    options = SolveOptions(workers=1, time_limit=10, deterministic=deterministic)
    assert_sound(instance, solve(instance, options, stop=AtLook(looks)))


@settings(max_examples=share(100), deadline=None, derandomize=True)
@given(instances(variants=True, rules=True), st.integers(0, 30))
def test_greedy_has_fused_a_part_of_what_it_would_have(instance: Instance, looks: int) -> None:
    cut_short = greedy_partition(instance, 1e20, Clock(AtLook(looks)))
    whole = greedy_partition(instance)
    assert check(instance, assemble(instance, cut_short.partition, hurried=True)) == ()
    if cut_short.complete:
        assert cut_short == whole
    else:
        finished = {op: frozenset(ops) for ops, _ in whole.partition for op in ops}
        assert all(finished[ops[0]].issuperset(ops) for ops, _ in cut_short.partition)
