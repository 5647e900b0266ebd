"""The tree search finds a packing exactly when there is one."""

from __future__ import annotations

import sys
import time
from functools import cache
from pathlib import Path

import pytest

from optfuse.lab.packing import machine_code, tree
from optfuse.lab.packing.layout import layout
from optfuse.lab.packing.restarts import search
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


@pytest.mark.parametrize(("name", "value"), [("SLICE", 1), ("ROWS", 1)])
def test_interruptions_and_growing_stacks_change_nothing(
    monkeypatch: pytest.MonkeyPatch, name: str, value: int
) -> None:
    problem = layout(perfect(2, pieces=60))
    wanted = search(problem, 1024 // problem.unit, 3, time.monotonic() + 60, max_nodes=20_000)
    monkeypatch.setattr(tree, name, value)
    assert search(problem, 1024 // problem.unit, 3, time.monotonic() + 60, max_nodes=20_000) == wanted


def test_compiling_is_tried_again_after_it_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept = tmp_path / "whole"
    monkeypatch.setattr(machine_code, "_kept", lambda: kept)
    monkeypatch.setattr(machine_code, "_compiling", cache(machine_code._compiling.__wrapped__))  # noqa: SLF001
    for program, works in (("raise SystemExit(1)", False), (f"open({str(kept)!r}, 'w').close()", True)):
        monkeypatch.setattr(machine_code, "COMMAND", [sys.executable, "-c", program])
        assert machine_code.ready(time.monotonic() + 60) is works
