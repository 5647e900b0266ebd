"""Offsets never overlap in time and space, and the floor is a floor."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optfuse.solver.memory.arena import ALIGNMENT, Packing, Span, aligned, arena_floor, pack, sweep
from tests.strategies import share


@st.composite
def spans(draw: st.DrawFn, max_size: int = 12) -> list[Span]:
    size = st.sampled_from([0, 1, 64, 65, 128, 1000, 4096])
    facts = draw(st.lists(st.tuples(size, st.integers(0, 10), st.integers(0, 4)), max_size=max_size))
    return [Span(number, size, first, first + length) for number, (size, first, length) in enumerate(facts)]


def assert_valid(problem: list[Span], offsets: tuple[int, ...], arena_bytes: int) -> None:
    for offset, span in zip(offsets, problem, strict=True):
        assert offset % ALIGNMENT == 0
        assert 0 <= offset <= offset + span.bytes <= arena_bytes
    for (one, at_one), (two, at_two) in combinations(zip(problem, offsets, strict=True), 2):
        in_time = one.first <= two.last and two.first <= one.last
        in_space = at_one < at_two + two.bytes and at_two < at_one + one.bytes and one.bytes and two.bytes
        assert not (in_time and in_space)


@pytest.mark.parametrize("packed", [pack, sweep])
@settings(max_examples=share(200), deadline=None, derandomize=True)
@given(problem=spans(max_size=20))
def test_packings_are_valid(packed: Callable[[list[Span]], Packing], problem: list[Span]) -> None:
    packing = packed(problem)
    assert_valid(problem, packing.offsets, packing.arena_bytes)
    assert arena_floor(problem) <= packing.arena_bytes <= sum(aligned(span.bytes) for span in problem)


def test_memory_is_reused_only_after_the_last_reader() -> None:
    # The second buffer is written by the kernel that last reads the first: both are live then.
    chain = [Span(0, 64, 0, 1), Span(1, 64, 1, 2), Span(2, 64, 2, 3)]
    packing = pack(chain)
    assert packing.arena_bytes == arena_floor(chain) == 128
    assert packing.offsets[0] == packing.offsets[2] != packing.offsets[1]


def test_a_sweep_takes_the_smallest_hole_that_fits_and_joins_holes() -> None:
    # Two holes of 128 and 64 bytes; the third of 64 goes into the second, and all three are free at the end.
    problem = [Span(0, 128, 0, 0), Span(1, 64, 0, 9), Span(2, 64, 0, 0), Span(3, 64, 0, 9), Span(4, 64, 1, 9)]
    assert sweep(problem).offsets[4] == sweep(problem).offsets[2]
    joined = [Span(0, 64, 0, 0), Span(1, 64, 0, 1), Span(2, 64, 0, 2), Span(3, 192, 3, 3)]
    assert sweep(joined).arena_bytes == 192


@pytest.mark.parametrize("packed", [pack, sweep])
@pytest.mark.parametrize("problem", [[], [Span(0, 0, 0, 0)]])
def test_nothing_to_place(packed: Callable[[list[Span]], Packing], problem: list[Span]) -> None:
    assert packed(problem).arena_bytes == 0
