"""The tables of ``docs/library.md`` say what the records say."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from optfuse.lab.generated.families import generate
from optfuse.report.summary import summary
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.solve import solve

SCRIPT: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "library.py"))


def test_kinds_losses_and_what_is_open() -> None:
    records = []
    for family, solver in (("grid", "cpsat"), ("cycles", "cpsat"), ("convex", "greedy")):
        instance = generate(family, 24, 0)
        options = SolveOptions(solver=solver, workers=1, deterministic=True)  # type: ignore[arg-type]
        records.append(summary(instance, solve(instance, options)))
    text = SCRIPT["document"](records)
    assert "| grid | 1 | 24 to 24 | 1 |" in text
    assert "| all | 3 | 24 to 24 | 2 |" in text
    assert f"| grid-24-0.generated | {records[0]['greedy_objective'] / 1e6:,.1f} |" in text
    not_proven = text.split("## Not proven")[1].split("##")[0]
    assert "convex-24-0.generated" in not_proven
    assert "grid" not in not_proven
    assert SCRIPT["kind_of"]({"name": "bert"}) == "inference"
    assert SCRIPT["kind_of"]({"name": "lstm_cells-160-steps.backward"}) == "backward"
