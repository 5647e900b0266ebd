"""The scripts of ``benchmarks/`` run."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_solve_is_measured_from_outside() -> None:
    measure = runpy.run_path(str(ROOT / "benchmarks" / "solver.py"))["measure"]
    row = measure(ROOT / "instances" / "example.json", limit=20.0, workers=1)
    assert row["status"] == "OPTIMAL"
    assert row["gap"] == 0
    assert 0 < row["wall"] < row["total"]
    assert row["over"] < 0 < row["rss_mib"]
