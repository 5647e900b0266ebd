"""The command line of batches: bad input is refused before anything is written, counts are printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import optfuse as package

EXAMPLE = Path(__file__).parents[2] / "instances" / "example.json"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--solvers", "greedy,best"], "solvers must be some of cpsat, greedy, exhaustive, inductor, not 'best'"),
        (["--mode", "all"], "mode must be one of both, inference, training"),
        (["--size", "huge"], "size must be one of full, bench, small"),
        (["--device", "h100x"], "unknown device"),
        (["--jobs", "0"], "jobs must be at least 1"),
        (["--task-limit", "0"], "task-limit must be above zero"),
        (["--memory-limit", "-1"], "memory-limit must be above zero"),
        (["--time-limit", "0"], "time_limit must be"),
        (["--retry"], "add --resume"),
        (["--engine", "slurm"], "engine must be one of local, dask, ray"),
    ],
)
def test_bad_options_leave_nothing(optfuse: Callable[..., Any], tmp_path: Path, flags: list[str], message: str) -> None:
    outcome = optfuse("batch", EXAMPLE, "--out", tmp_path / "run", *flags)
    assert message in outcome.error_line()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_counts_and_rows(optfuse: Callable[..., Any], tmp_path: Path) -> None:
    flags = ("--solvers", "greedy", "--json", "--jobs", 1)
    first = optfuse("batch", EXAMPLE, "--out", tmp_path / "run", *flags)
    again = optfuse("batch", EXAMPLE, "--out", tmp_path / "run", *flags, "--resume")

    assert (first.code, again.code) == (0, 0), first.err + again.err
    assert "[1/1, 0 failed" in first.err
    counts = [json.loads(outcome.out) for outcome in (first, again)]
    assert [(c["done"], c["failed"], c["kept"]) for c in counts] == [(1, 0, 0), (1, 0, 1)]
    assert list(package.read_run(tmp_path / "run").solver) == ["greedy"]
