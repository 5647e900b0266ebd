"""The tree search finds a packing exactly when there is one."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest

from optfuse.lab.packing.layout import layout
from optfuse.lab.packing.machine_code import Compilation
from optfuse.lab.packing.restarts import search
from optfuse.lab.packing.tree import TreeSearch
from optfuse.problem.packing import check_packing
from tests.packings import least_height, perfect, random_lifetimes


@pytest.mark.parametrize("alignments", [(1,), (1, 2, 4)])
def test_complete_on_small_problems(alignments: tuple[int, ...]) -> None:
    for seed in range(60):
        buffers = random_lifetimes(seed, 3 + seed % 3, alignments)
        problem, least = layout(buffers), least_height(buffers)
        for capacity in (least - 1, least):
            outcome, offsets, _ = search(problem, capacity // problem.unit, seed, time.monotonic() + 60)
            assert outcome == ("packed" if capacity == least else "infeasible"), (seed, capacity)
            if outcome == "packed":
                assert check_packing(buffers, [offset * problem.unit for offset in offsets], capacity) == ()


@pytest.mark.parametrize("seed", range(4))
def test_memory_without_a_gap(seed: int) -> None:
    buffers = perfect(seed, pieces=24)
    problem = layout(buffers)
    outcome, offsets, nodes = search(problem, 1024 // problem.unit, 0, time.monotonic() + 60)
    assert outcome == "packed"
    assert nodes > 0
    assert check_packing(buffers, [offset * problem.unit for offset in offsets], 1024) == ()


def test_stops_when_told() -> None:
    problem = layout(perfect(3, pieces=150))
    assert search(problem, 1024, 0, time.monotonic() - 1)[0] == "stopped"
    assert search(problem, 1024, 0, time.monotonic() + 60, lambda: True)[0] == "stopped"


def test_the_seed_decides() -> None:
    problem = layout(perfect(5, pieces=30))
    found = [search(problem, 1024, 7, time.monotonic() + 60) for _ in range(2)]
    assert found[0] == found[1]


@pytest.mark.parametrize("small", [{"steps": 1}, {"rows": 1}])
def test_interruptions_and_growing_stacks_change_nothing(small: dict[str, int]) -> None:
    problem = layout(perfect(2, pieces=60))
    wanted, other = (TreeSearch(problem, 1024 // problem.unit, **more) for more in ({}, small))
    found = [tree.run(np.arange(problem.count), True, 20_000, time.monotonic() + 60) for tree in (wanted, other)]
    assert found[0] == found[1]
    assert (wanted.nodes, wanted.blame.tolist()) == (other.nodes, other.blame.tolist())


def test_compiling_is_tried_again_after_it_failed(tmp_path: Path) -> None:
    compilation = Compilation(tmp_path / "whole", [sys.executable, "-c", "raise SystemExit(1)"])
    assert not compilation.ready(time.monotonic() + 60, lambda: False)
    compilation.command = [sys.executable, "-c", f"open({str(tmp_path / 'whole')!r}, 'w').close()"]
    assert compilation.ready(time.monotonic() + 60, lambda: False)
