"""``optfuse pareto``: rows as JSON, plots in a folder, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from optfuse.cli.app import app
from optfuse.problem.serialize import save_instance
from tests.rematerial import masked


def test_rows_and_plots(tmp_path: Path) -> None:
    save_instance(masked(), tmp_path / "masked.json")
    out = tmp_path / "plots"
    arguments = ["pareto", str(tmp_path / "masked.json"), "--points", "3", "--recompute", "--workers", "1"]
    done = CliRunner().invoke(app, [*arguments, "--time-limit", "10", "--json", "--out", str(out)])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert rows[0]["status"] == "OPTIMAL"
    assert all(row["peak_memory_bytes"] <= row["cap_bytes"] for row in rows if row["peak_memory_bytes"])
    assert {path.name for path in out.iterdir()} == {"masked.pareto.svg", "masked.pareto.png"}


def test_the_cap_of_solve(tmp_path: Path) -> None:
    save_instance(masked(), tmp_path / "masked.json")
    arguments = ["solve", str(tmp_path / "masked.json"), "--workers", "1", "--json"]
    done = CliRunner().invoke(app, [*arguments, "--peak-memory", "4.1MiB", "--recompute"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["peak_memory_bytes"] <= 4.1 * 2**20
    refused = CliRunner().invoke(app, [*arguments, "--peak-memory", "4.1MiB"])
    assert refused.exit_code != 0
    assert "the least that can be met is" in str(refused.exception)
