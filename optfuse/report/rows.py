"""One row of figures for each instance solved, as CSV: how a library of instances keeps its best known values."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

from optfuse.problem.instance import Instance
from optfuse.solver.result import SolveResult

#: ``greedy``, ``objective`` and ``bound`` are picoseconds; ``version`` is that of optfuse.
COLUMNS = ("name", "kind", "ops", "greedy", "objective", "bound", "status", "seconds", "version")


def row(instance: Instance, result: SolveResult) -> dict[str, Any]:
    """The figures of one solve, by the names of ``COLUMNS``."""
    return {
        "name": instance.name,
        "kind": kind_of(instance.name),
        "ops": len(instance.ops),
        "greedy": result.greedy_objective,
        "objective": result.objective,
        "bound": result.bound,
        "status": result.status,
        "seconds": round(result.statistics.wall_s, 2),
        "version": dict(result.versions).get("optfuse", ""),
    }


def kind_of(name: str) -> str:
    """The last part of a dotted name, like ``backward`` in ``gpt2.backward``; empty if there are no parts."""
    _, dot, kind = name.rpartition(".")
    return kind if dot else ""


def csv_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """A table with a line of headings; lines end in a newline alone, on every system."""
    text = io.StringIO()
    writer: csv.DictWriter[str] = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
