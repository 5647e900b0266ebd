"""Which kernels share a launch: in the order of chains, by forms, and not where that needs much more memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from optfuse.problem.launches import Launchable
from optfuse.solver.memory.launch_order import launched
from optfuse.solver.memory.launches import fewest_launches, grouped, share_launches
from optfuse.solver.memory.order_problem import OrderProblem, order_problem, peak_bytes
from tests.problem.test_check_launches import KIB, two_chains
from tests.problem.test_check_launches import launched as in_launches

SMALL = Launchable(0, ())
A, B = Launchable(0, (1,)), Launchable(0, (2,))


def problem(count: int, *pairs: tuple[int, int]) -> OrderProblem:
    before = tuple(tuple(a for a, b in pairs if b == k) for k in range(count))
    after = tuple(tuple(b for a, b in pairs if a == k) for k in range(count))
    return OrderProblem(before, after, (), 0, tuple(range(count)))


def launches(case: OrderProblem, kinds: Sequence[Launchable | None], window: int = 99) -> list[set[int]]:
    return [set(group) for group in grouped(case, range(len(kinds)), kinds, window)]


def test_as_many_launches_as_the_longest_chain() -> None:
    case = problem(6, (0, 1), (1, 2), (3, 4))
    assert launches(case, [SMALL] * 6) == [{0, 3, 5}, {1, 4}, {2}]
    assert fewest_launches(case, range(6), [SMALL] * 6) == 3


def test_calls_run_first_and_pass_no_launch_on() -> None:
    """Call 1 waits for kernel 0 and kernel 2 for the call; kernel 4 for call 3, which waits for nothing."""
    case = problem(5, (0, 1), (1, 2), (3, 4))
    kinds = [SMALL, None, SMALL, None, SMALL]
    assert launches(case, kinds) == [{3}, {0, 4}, {1}, {2}]
    assert fewest_launches(case, range(5), kinds) == 2


def test_large_kernels_of_different_forms_do_not_share() -> None:
    case = problem(5)
    assert launches(case, [A, B, SMALL, A, B]) == [{0, 2, 3}, {1, 4}]
    assert fewest_launches(case, range(5), [A, B, SMALL, A, B]) == 2


def test_the_form_that_is_complete_goes_first() -> None:
    """Kernel 3, of the form of kernel 0, waits for kernel 1: that one's form goes first."""
    case = problem(4, (1, 3))
    assert launches(case, [A, B, B, A]) == [{1, 2}, {0, 3}]


def test_another_device_has_launches_of_its_own() -> None:
    other = Launchable(1, ())
    assert launches(problem(4), [SMALL, other, SMALL, other]) == [{0, 2}, {1, 3}]
    assert fewest_launches(problem(4), range(4), [SMALL, other, SMALL, other]) == 2


@pytest.mark.parametrize(
    ("window", "expected"), [(1, [{0}, {1}, {2}, {3}]), (2, [{0, 1}, {2, 3}]), (4, [{0, 1, 2, 3}])]
)
def test_kernels_move_no_further_than_the_window(window: int, expected: list[set[int]]) -> None:
    assert launches(problem(4), [SMALL] * 4, window) == expected


def test_no_launch_is_shared_that_needs_more_memory() -> None:
    """Two chains side by side hold two temporaries and two results at a time, one after the other three of them."""
    instance = two_chains(KIB)
    kernels = in_launches(instance, (), (0, 1, 2, 3)).kernels
    chains, order = order_problem(instance, kernels), range(len(kernels))
    assert peak_bytes(launched(chains, [(0, 2), (1, 3)]), range(2)) > peak_bytes(chains, order)
    _, found, _ = share_launches(instance, kernels, chains, order)
    assert found == ((1, 2),)
    beside_much = replace(chains, base=2000 * KIB)
    moved, found, sharing = share_launches(instance, kernels, beside_much, order)
    assert (moved, found) == ((0, 2, 1, 3), ((0, 1), (2, 3)))
    assert sharing is not None
    assert (sharing.kernels, sharing.launches, sharing.launches_bound) == (4, 2, 2)
    assert share_launches(instance, kernels, beside_much, order, cap=1)[1] == ((1, 2),)
