"""The files of ``instances/`` and the table of what is known of them."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "instances"


@dataclass(frozen=True, slots=True)
class Known:
    """A row of ``best_known.csv``; times are picoseconds under the model."""

    name: str
    ops: int
    greedy: int
    objective: int
    bound: int
    status: str
    seconds: float


def files() -> dict[str, Path]:
    """Instance files by name."""
    paths = [path for path in FOLDER.iterdir() if path.name.endswith((".json", ".json.gz"))]
    return {path.name.removesuffix(".gz").removesuffix(".json"): path for path in sorted(paths)}


def best_known() -> dict[str, Known]:
    """Rows by name."""
    with (FOLDER / "best_known.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = {
        row["name"]: Known(
            row["name"],
            int(row["ops"]),
            int(row["greedy"]),
            int(row["objective"]),
            int(row["bound"]),
            row["status"],
            float(row["seconds"]),
        )
        for row in rows
    }
    assert len(found) == len(rows)
    return found
