"""The order with the fewest runs against all orders."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optfuse.errors import IllegalKernelError
from optfuse.solver.memory.fewest_cuts import fewest_runs, runs
from optfuse.solver.memory.order_problem import OrderProblem
from tests.strategies import share


def problem(n: int, pairs: set[tuple[int, int]]) -> OrderProblem:
    before = tuple(tuple(a for a, b in sorted(pairs) if b == k) for k in range(n))
    after = tuple(tuple(b for a, b in sorted(pairs) if a == k) for k in range(n))
    return OrderProblem(before, after, (), 0, tuple(range(n)))


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, set[tuple[int, int]], frozenset[int]]:
    n = draw(st.integers(1, 7))
    name = draw(st.permutations(range(n)))
    pairs = {(name[a], name[b]) for a in range(n) for b in range(a + 1, n) if draw(st.integers(0, 2)) == 0}
    return n, pairs, draw(st.frozensets(st.integers(0, n - 1)))


@given(cases())
@settings(max_examples=share(200), deadline=None)
def test_no_order_has_fewer_runs(case: tuple[int, set[tuple[int, int]], frozenset[int]]) -> None:
    n, pairs, marked = case

    def follows(order: tuple[int, ...] | list[int]) -> bool:
        place = {kernel: k for k, kernel in enumerate(order)}
        return all(place[a] < place[b] for a, b in pairs)

    found = fewest_runs(problem(n, pairs), marked)
    assert sorted(found) == list(range(n))
    assert follows(found)
    assert runs(found, marked) == min(runs(order, marked) for order in permutations(range(n)) if follows(order))


def test_the_better_first_colour_is_taken() -> None:
    # 0 (marked) before 1; 2 is marked and ready: beginning with unmarked kernels has nothing to take
    assert runs(fewest_runs(problem(3, {(0, 1)}), {0, 2}), {0, 2}) == 2
    # 0 before 1 (marked): 3 runs if it begins with the marked 2, which is ready
    assert runs(fewest_runs(problem(3, {(0, 1)}), {1, 2}), {1, 2}) == 2


def test_a_cycle_is_refused() -> None:
    with pytest.raises(IllegalKernelError, match="cycle"):
        fewest_runs(problem(3, {(0, 1), (1, 0)}), {2})
