"""Sweeps over windows pack what can be packed, in either direction, here and in another process."""

from __future__ import annotations

import time

import numpy as np
import pytest

from optfuse.lab.packing.fitting import fit
from optfuse.lab.packing.layout import layout, mirrored, window
from optfuse.lab.packing.restarts import search
from optfuse.lab.packing.sections import SectionModel
from optfuse.lab.packing.sweep_process import sweeps_in_process
from optfuse.lab.packing.windows import sweep, sweeps
from optfuse.problem.packing import Lifetime, check_packing
from tests.packings import least_height, perfect, random_lifetimes
from tests.strategies import share


def by_time(buffers: list[Lifetime]) -> list[Lifetime]:
    return sorted(buffers, key=lambda b: (b.lower, b.upper))


def roomy(seed: int, pieces: int) -> list[Lifetime]:
    """A long memory with a little room: every twentieth buffer of a full one is missing."""
    return by_time(perfect(seed, pieces, duration=2000))[::-1][pieces // 20 :]


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_a_sweep_in_either_direction_is_valid(seed: int) -> None:
    buffers = by_time(roomy(seed, 120))
    problem = layout(buffers)
    outcome, offsets, share = sweep(problem, 1024 // problem.unit, seed, time.monotonic() + 60)
    assert 0 <= share <= 1
    if outcome == "packed":
        assert share == 1
        assert check_packing(buffers, [offset * problem.unit for offset in offsets], 1024) == ()


@pytest.mark.slow
def test_sweeps_find_a_packing_here_and_elsewhere() -> None:
    buffers = by_time(perfect(1, 150, duration=1000))
    problem = layout(buffers)
    until = time.monotonic() + 60
    for outcome, offsets in (
        sweeps(problem, 1024 // problem.unit, 0, until),
        sweeps_in_process(problem, 1024 // problem.unit, 0, until, lambda: False),
    ):
        assert outcome == "packed"
        assert check_packing(buffers, [offset * problem.unit for offset in offsets], 1024) == ()


def test_the_other_process_ends_when_told_and_in_time() -> None:
    problem = layout(perfect(1, 150))
    assert sweeps_in_process(problem, 1024, 0, time.monotonic() + 60, lambda: True) == ("stopped", ())
    assert sweeps_in_process(problem, 1024, 0, time.monotonic() - 1, lambda: False) == ("stopped", ())


def test_one_window_is_the_whole_and_proves() -> None:
    for seed in range(30):
        buffers = by_time(random_lifetimes(seed, 5, (1, 2, 4)))
        problem, least = layout(buffers), least_height(buffers)
        for capacity in (least - 1, least):
            outcome, _ = sweeps(problem, capacity // problem.unit, seed, time.monotonic() + 60)
            assert outcome == ("packed" if capacity == least else "infeasible")


def test_pinned_buffers_stay_and_the_rest_fits_when_it_can() -> None:
    """Some buffers of a packing pinned, the rest fits; tree search and CP-SAT agree when one of them is moved."""
    impossible = 0
    for seed in range(share(60)):
        buffers = by_time(random_lifetimes(seed, 6))
        problem, least = layout(buffers), least_height(buffers)
        capacity, until = least // problem.unit, time.monotonic() + 60
        _, offsets, _ = search(problem, capacity, seed, until)
        pinned = np.array([offset if number % 2 else -1 for number, offset in enumerate(offsets)], np.int64)
        outcome, found, _ = search(problem, capacity, seed, until, pinned=pinned)
        assert outcome == "packed"
        assert all(found[number] == offsets[number] for number in range(1, len(offsets), 2))
        assert check_packing(buffers, [offset * problem.unit for offset in found], least) == ()
        pinned[1] = (pinned[1] + 1) % (capacity - problem.sizes[1] + 1)
        moved, _, _ = search(problem, capacity, seed, until, pinned=pinned)
        assert moved == SectionModel(problem, capacity, pinned).run(1, 0, until), seed
        impossible += moved == "infeasible"
    assert impossible


def test_windows_and_mirrors() -> None:
    buffers = by_time(random_lifetimes(4, 9))
    problem = layout(buffers)
    part, numbers = window(problem, 1, 3)
    assert [tuple(numbers[n] for n in members) for members in part.members] == list(problem.members[1:3])
    assert part.loads.tolist() == problem.loads.tolist()[1:3]
    twice = mirrored(mirrored(problem))
    assert twice.members == problem.members
    assert twice.first.tolist() == problem.first.tolist()
    assert mirrored(problem).loads.tolist() == problem.loads.tolist()[::-1]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_fit_keeps_its_deadline_on_what_it_cannot_decide(workers: int) -> None:
    problem = layout(perfect(7, 400))
    assert fit(problem, 1024 // problem.unit - 1, workers, 0, time.monotonic() + 1).outcome == "infeasible"
    found = fit(problem, 1024 // problem.unit, workers, 0, time.monotonic() + 1)
    assert found.outcome in ("packed", "stopped")
