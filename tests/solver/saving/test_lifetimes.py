"""What is in memory at each level of a training step, and the descent over what is saved: beside all choices."""

from __future__ import annotations

from itertools import chain, combinations

import pytest

from optfuse.solver.control.clock import WALL
from optfuse.solver.saving.choice import ForwardValue
from optfuse.solver.saving.descent import descend
from optfuse.solver.saving.lifetimes import IMPOSSIBLE, Lifetimes


def call(name: str, inputs: tuple[int, ...], size: int, again: int | None, level: int) -> ForwardValue:
    """A library call's result, which one of the backward half reads at a level."""
    return ForwardValue(name, inputs, size, again_ps=again, library=True, called=level, last_called=level)


def chain_of(sizes: tuple[int, ...], times: tuple[int | None, ...]) -> list[ForwardValue]:
    """Library calls, each of what the one before computes, read in the reverse order."""
    last = len(sizes) - 1
    return [
        call(f"v{k}", (k - 1,) if k else (), size, again, last - k)
        for k, (size, again) in enumerate(zip(sizes, times, strict=True))
    ]


def test_what_is_computed_again_stays_until_its_last_reader() -> None:
    problem = Lifetimes.of(chain_of((100, 200, 300), (5, 6, 7)))
    assert problem.forward_levels == 3
    saved = problem.outcome([0, 1, 2])
    assert saved.cost_ps == 0
    assert saved.live == [100, 300, 600, 600, 300, 100]  # ever more, then each until it is read
    first = problem.outcome([0])
    assert first.cost_ps == 13
    assert first.live == [100, 100, 100, 600, 300, 100]  # both others come at the first level, for the last one
    assert problem.outcome([2]).cost_ps == 11
    assert problem.outcome([2]).live == [0, 0, 300, 300, 300, 100]  # the first two at the level that reads the second


def test_a_cheap_loop_is_in_memory_for_library_calls_alone() -> None:
    values = [
        ForwardValue("dense", (), 1000, again_ps=50, read_ps=2, library=True, called=2, last_called=2),
        ForwardValue("cast", (0,), 1000, again_ps=0, write_ps=3, looped=frozenset({0})),
        ForwardValue("relu", (1,), 1000, again_ps=0, write_ps=3, looped=frozenset({0})),
        ForwardValue("view", (2,), None, view=True, called=1, last_called=1),
    ]
    problem = Lifetimes.of(values)
    assert [values[one.value].name for one in problem.stored] == ["dense", "relu"]
    kept = problem.outcome([0])
    assert problem.forward_levels == 2
    assert kept.live == [1000, 1000, 1000, 2000, 1000]  # relu is written at the level of the call that reads it
    assert kept.cost_ps == 3 + 2 + 2  # it is written, and what it is computed from is read at two levels


def masked(levels: frozenset[int]) -> Lifetimes:
    """A library call's result of two bytes an element that another reads, and its mask of one, which loops read."""
    dense = ForwardValue("dense", (), 1000, again_ps=50, read_ps=4, library=True, called=0, last_called=0)
    return Lifetimes.of([dense, ForwardValue("mask", (0,), 500, save_ps=2, write_ps=2, read_ps=2, looped=levels)])


def test_a_mask_of_one_level_is_read_or_computed_there_and_never_written() -> None:
    problem = masked(frozenset({1}))
    assert [problem.outcome(some).cost_ps for some in ((0, 1), (0,), (1,), ())] == [2 + 2, 4, 2 + 2 + 50, 50 + 4]
    assert problem.outcome([0, 1]).live == [1000, 1500, 1500, 500]
    assert problem.outcome([0]).live == [1000, 1000, 1000, 1000]  # what it is computed from stays instead


def test_a_mask_of_several_levels_is_written_once_if_it_is_not_saved() -> None:
    problem = masked(frozenset({1, 2, 3}))
    assert problem.outcome([0]).cost_ps == 4 + 2 + 3 * 2
    assert problem.outcome([0]).live == [1000, 1000, 1000, 1500, 500, 500]


def test_values_of_one_call_are_computed_together() -> None:
    values = [
        ForwardValue("both", (), None, again_ps=40, library=True),
        ForwardValue("first", (0,), 500, again_ps=0, library=True, called=0, last_called=0),
        ForwardValue("second", (0,), 500, again_ps=0, library=True, called=1, last_called=1),
    ]
    assert Lifetimes.of(values).outcome([]).cost_ps == 40


def test_small_values_are_kept_and_draws_cannot_be_computed_again() -> None:
    values = [call("big", (), 6400, None, 0), call("small", (0,), 99, 5, 0)]
    problem = Lifetimes.of(values)
    assert [one.value for one in problem.stored] == [0]
    assert problem.outcome([]).cost_ps >= IMPOSSIBLE
    assert descend(problem, [0] * problem.levels, 0, [frozenset()], WALL, 10).saved == {0}


@pytest.mark.spread(3)
@pytest.mark.parametrize("seed", range(6))
def test_descent_finds_the_cheapest_choice_within_a_cap(seed: int) -> None:
    sizes = (300, 500, 200, 800, 400, 300, 700)
    times = tuple(10 + (7 * k * (seed + 3)) % 23 for k in range(7))
    problem = Lifetimes.of(chain_of(sizes, times))
    beside = [50 * (k % (seed + 2)) for k in range(problem.levels)]
    everything = chain.from_iterable(combinations(range(7), count) for count in range(8))
    outcomes = [problem.outcome(some) for some in everything]
    peaks = [max(a + b for a, b in zip(one.live, beside, strict=True)) for one in outcomes]
    for cap in sorted(set(peaks))[:: max(1, len(set(peaks)) // 5)]:
        best = min(one.cost_ps for one, peak in zip(outcomes, peaks, strict=True) if peak <= cap)
        found = descend(problem, beside, cap, [frozenset()], WALL, 1500, seed)
        assert found.peak <= cap
        assert found.cost_ps == best
