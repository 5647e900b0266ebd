"""Which kernels share a launch: in the order of chains, by forms, and not where that needs much more memory."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from optfuse.problem.launches import Launchable
from optfuse.solver.baseline.answer_check import unfused
from optfuse.solver.memory.launch_order import launched
from optfuse.solver.memory.launches import Stretches, fewest_in_stretches, fewest_launches, grouped, share_launches
from optfuse.solver.memory.order_problem import OrderProblem, Storage, order_problem, peak_bytes
from tests.fuzzing import build
from tests.problem.test_check_launches import KIB, two_chains
from tests.problem.test_check_launches import launched as in_launches

SMALL = Launchable(0, ())
A, B = Launchable(0, (1,)), Launchable(0, (2,))


def problem(count: int, *pairs: tuple[int, int]) -> OrderProblem:
    before = tuple(tuple(a for a, b in pairs if b == k) for k in range(count))
    after = tuple(tuple(b for a, b in pairs if a == k) for k in range(count))
    return OrderProblem(before, after, (), 0, tuple(range(count)))


def launches(case: OrderProblem, kinds: Sequence[Launchable | None]) -> list[set[int]]:
    return [set(group) for group in grouped(case, range(len(kinds)), kinds)]


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


def test_a_stretch_has_launches_of_its_own() -> None:
    """Kernel 2 waits for kernel 0, which has run before the stretch of kernels 2 and 3."""
    case = problem(4, (0, 2), (1, 3))
    assert [set(group) for group in grouped(case, (2, 3), [SMALL] * 4)] == [{2, 3}]


def tables(count: int, kib: int) -> OrderProblem:
    """Chains of two kernels, one chain after the other: a temporary and a result of a chain have so many KiB each."""
    pairs = [(2 * k, 2 * k + 1) for k in range(count)]
    temporaries = [Storage(2 * k, kib * KIB, (2 * k, 2 * k + 1), False, False) for k in range(count)]
    results = [Storage(2 * k + 1, kib * KIB, (2 * k + 1,), False, True) for k in range(count)]
    return replace(problem(2 * count, *pairs), storages=(*temporaries, *results))


def test_stretches_are_long_while_little_is_alive() -> None:
    """Of 16 results 8 can be made at once, then 4, 2, 1 and 1: their temporaries have room beside the results."""
    case, order = tables(16, 1), range(32)
    stretches = Stretches(case, order, [SMALL] * 32)
    peak = peak_bytes(case, order)
    found = fewest_in_stretches(stretches, peak)
    assert peak_bytes(launched(case, found), range(len(found))) <= peak == 17 * KIB
    assert len(found) <= 10
    assert min(len(launch) for launch in found[:2]) == 8
    assert len(fewest_in_stretches(stretches, 32 * KIB)) == 2


@pytest.mark.parametrize("seed", range(20))
def test_the_peak_of_a_stretch(seed: int) -> None:
    """Wherever an order is cut, the largest peak of its stretches is that of the whole."""
    instance = build(random.Random(seed), 12)
    kernels = unfused(instance).kernels
    case, order = order_problem(instance, kernels), range(len(kernels))
    stretches = Stretches(case, order, [None if op % 3 == seed % 3 else SMALL for op in order])
    for cut in range(1, len(order)):
        halves = [(start, end, stretches.launches(start, end)) for start, end in ((0, cut), (cut, len(order)))]
        found = [launch for _, _, mine in halves for launch in mine]
        whole = peak_bytes(launched(case, found), range(len(found)))
        assert max(stretches.peak(*half) for half in halves) == whole


def test_no_launch_is_shared_that_needs_more_memory() -> None:
    """Two chains side by side hold two temporaries and two results at a time, one after the other three of them."""
    instance = two_chains(KIB)
    kernels = in_launches(instance, (), (0, 1, 2, 3)).kernels
    chains, order = order_problem(instance, kernels), range(len(kernels))
    assert peak_bytes(launched(chains, [(0, 2), (1, 3)]), range(2)) > peak_bytes(chains, order)
    _, one, _ = share_launches(instance, kernels, chains, order)
    assert [len(launch) for launch in one] == [2]
    beside_much = replace(chains, base=2000 * KIB)
    moved, found, sharing = share_launches(instance, kernels, beside_much, order)
    assert (moved, found) == ((0, 2, 1, 3), ((0, 1), (2, 3)))
    assert sharing is not None
    assert (sharing.kernels, sharing.launches, sharing.launches_bound) == (4, 2, 2)
    assert share_launches(instance, kernels, beside_much, order, cap=1)[1] == one
