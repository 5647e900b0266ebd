"""The exact searches for an order agree with trying every permutation."""

from __future__ import annotations

import time
from itertools import permutations

from hypothesis import given, settings

from optfuse.problem.instance import Instance
from optfuse.solver.baseline.greedy import greedy
from optfuse.solver.memory.order_problem import OrderProblem, floor_bytes, order_problem, peak_bytes, program_order
from optfuse.solver.memory.order_search import OrderOutcome, least_peak_order
from tests.solver.memory.test_memory import assert_topological, unfused
from tests.strategies import instances, share


def by_permutation(problem: OrderProblem) -> int:
    """The least peak of all orders, the plain way."""
    best = None
    for order in permutations(range(len(problem.before))):
        place = {kernel: position for position, kernel in enumerate(order)}
        if all(place[e] < place[k] for k, before in enumerate(problem.before) for e in before):
            peak = peak_bytes(problem, order)
            best = peak if best is None else min(best, peak)
    assert best is not None
    return best


@settings(max_examples=share(80), deadline=None, derandomize=True)
@given(instances(max_ops=6))
def test_best_first_search_is_exact(instance: Instance) -> None:
    problem = order_problem(instance, unfused(instance))
    found = least_peak_order(problem, program_order(problem))
    assert_topological(problem, list(found.order))
    assert found.proven
    assert found.peak == peak_bytes(problem, found.order) == by_permutation(problem)


@settings(max_examples=share(80), deadline=None, derandomize=True)
@given(instances(max_ops=9, min_ops=5))
def test_a_stopped_search_keeps_a_true_bound(instance: Instance) -> None:
    problem = order_problem(instance, greedy(instance).kernels)
    exact = least_peak_order(problem, program_order(problem))
    for states in (0, 1, 3):
        stopped = least_peak_order(problem, program_order(problem), max_states=states)
        assert stopped.bound <= exact.peak <= stopped.peak
        assert_topological(problem, list(stopped.order))
        counted = least_peak_order(problem, program_order(problem), max_steps=states)
        assert counted.bound <= exact.peak <= counted.peak
    late = least_peak_order(problem, program_order(problem), deadline=time.monotonic() - 1)
    assert late.bound <= exact.peak <= late.peak


def test_an_outcome_is_proven_when_its_bound_is_reached() -> None:
    assert OrderOutcome((0,), 5, 5).proven
    assert not OrderOutcome((0,), 5, 4).proven


@settings(max_examples=share(40), deadline=None, derandomize=True)
@given(instances())
def test_the_floor_is_below_the_optimum(instance: Instance) -> None:
    problem = order_problem(instance, greedy(instance).kernels)
    assert floor_bytes(problem) <= least_peak_order(problem, program_order(problem)).peak
