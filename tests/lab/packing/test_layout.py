"""Sections hold exactly what is live together."""

from __future__ import annotations

from itertools import combinations

from optfuse.lab.packing.layout import layout
from optfuse.problem.packing import Lifetime
from tests.packings import random_lifetimes


def test_buffers_meet_in_a_section_exactly_when_they_meet_in_time() -> None:
    for seed in range(60):
        buffers = random_lifetimes(seed, 9)
        problem = layout(buffers)
        for (i, one), (j, two) in combinations(enumerate(buffers), 2):
            in_time = one.lower < two.upper and two.lower < one.upper
            assert in_time == any({i, j} <= set(members) for members in problem.members)
            assert in_time == (j in problem.overlapping[i])
        for number in range(len(buffers)):
            mine = [section for section, members in enumerate(problem.members) if number in members]
            assert mine == list(range(problem.first[number], problem.last[number]))
        sets = [set(members) for members in problem.members]
        assert not any(one <= two for one in sets for two in sets if one is not two)


def test_the_load_is_the_largest_sum_live_at_once() -> None:
    buffers = [Lifetime("a", 0, 3, 6), Lifetime("b", 2, 5, 4), Lifetime("c", 3, 6, 8)]
    problem = layout(buffers)
    assert problem.unit == 2
    assert problem.loads.tolist() == [5, 6]
    assert problem.loads.max() * problem.unit == 12
