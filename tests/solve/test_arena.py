"""Offsets never overlap in time and space, and the floor is a floor."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optfuse.solve.arena import ALIGNMENT, Span, aligned, arena_floor, pack


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


@settings(max_examples=200, deadline=None, derandomize=True)
@given(spans())
def test_packings_are_valid(problem: list[Span]) -> None:
    packing = pack(problem)
    assert_valid(problem, packing.offsets, packing.arena_bytes)
    assert arena_floor(problem) <= packing.arena_bytes <= sum(aligned(span.bytes) for span in problem)


def test_memory_is_reused_only_after_the_last_reader() -> None:
    # The second buffer is written by the kernel that last reads the first: both are live then.
    chain = [Span(0, 64, 0, 1), Span(1, 64, 1, 2), Span(2, 64, 2, 3)]
    packing = pack(chain)
    assert packing.arena_bytes == arena_floor(chain) == 128
    assert packing.offsets[0] == packing.offsets[2] != packing.offsets[1]


@pytest.mark.parametrize("problem", [[], [Span(0, 0, 0, 0)]])
def test_nothing_to_place(problem: list[Span]) -> None:
    assert pack(problem).arena_bytes == 0
