"""A sweep of memory caps as rows, as a table to print, and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from optfuse.files import whole_file
from optfuse.report.summary import change
from optfuse.solver.pareto import Pareto

if TYPE_CHECKING:
    import pandas as pd

MIB = 1 << 20
US = 1_000_000


def pareto_rows(pareto: Pareto) -> list[dict[str, Any]]:
    """One flat record a cap: bytes and picoseconds under the model; None where no schedule was found."""
    rows: list[dict[str, Any]] = []
    for point in pareto.points:
        solution = point.solution
        rows.append(
            {
                "name": pareto.name,
                "cap_bytes": point.cap,
                "status": point.status,
                "peak_memory_bytes": None if solution is None else solution.peak_bytes,
                "objective": None if solution is None else solution.objective,
                "bound": point.bound,
                "gap": None if solution is None else (solution.objective - point.bound) / max(1, solution.objective),
                "kernels": None if solution is None else len(solution.kernels),
                "copied_ops": None if solution is None else _copied(solution.kernels),
                "floor_bytes": pareto.floor,
            }
        )
    return rows


def _copied(kernels: Sequence[Any]) -> int:
    ops = [op for kernel in kernels for op in kernel.ops]
    return len(ops) - len(set(ops))


def pareto_table(paretos: Sequence[Pareto]) -> Table:
    """Predicted time within each cap, a row a cap."""
    table = Table(title="Predicted time within a cap on live bytes, under the stated cost model", title_justify="left")
    table.add_column("graph", overflow="fold")
    for heading in ("cap MiB", "of free peak", "peak MiB", "us", "change", "bound us", "gap", "copied ops"):
        table.add_column(heading, justify="right")
    table.add_column("status")
    for pareto in paretos:
        free = pareto.points[0].solution
        for point, row in zip(pareto.points, pareto_rows(pareto), strict=True):
            found = point.solution
            missing = "-" if found is None else ""
            table.add_row(
                pareto.name,
                f"{point.cap / MIB:,.1f}",
                f"{point.cap / max(1, pareto.points[0].cap):.1%}",
                missing or f"{row['peak_memory_bytes'] / MIB:,.1f}",
                missing or f"{row['objective'] / US:,.1f}",
                missing or (change(free.objective, row["objective"]) if free is not None else ""),
                f"{point.bound / US:,.1f}",
                missing or f"{row['gap']:.2%}",
                missing or str(row["copied_ops"]),
                point.status,
            )
    return table


def saving_table(name: str, front: pd.DataFrame) -> Table:
    """What a training step takes by what it saves, a row a choice."""
    title = f"{name}: predicted time of a training step by what it saves for its backward graph"
    table = Table(title=title, title_justify="left")
    table.add_column("choice", overflow="fold")
    for heading in ("saved MiB", "peak MiB", "us", "change", "bound us", "gap"):
        table.add_column(heading, justify="right")
    rows: list[dict[str, Any]] = front.to_dict("records")
    for row in rows:
        table.add_row(
            row["choice"],
            f"{row['saved_bytes'] / MIB:,.1f}",
            f"{row['peak_memory_bytes'] / MIB:,.1f}",
            f"{row['objective'] / US:,.1f}",
            change(rows[0]["objective"], row["objective"]),
            f"{row['bound'] / US:,.1f}",
            f"{row['gap']:.2%}",
        )
    return table


def save_pareto_plot(pareto: Pareto, path: Path) -> None:
    """Time against memory, with the bounds; the format follows the name (.png, .svg, .pdf).

    Raises:
        OutputError: When the file cannot be written.
    """
    # matplotlib takes a second to import.
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5))
    met = [(p.solution.peak_bytes / MIB, p.solution.objective / US) for p in pareto.points if p.solution is not None]
    axes.step([x for x, _ in met], [y for _, y in met], where="pre", marker="o", label="cheapest schedule found")
    caps = [point.cap / MIB for point in pareto.points]
    axes.step(caps, [point.bound / US for point in pareto.points], where="pre", linestyle="--", label="lower bound")
    axes.axvline(pareto.floor / MIB, color="grey", linestyle=":", label="no schedule needs less")
    axes.set_xlabel("peak of live memory [MiB]")
    axes.set_ylabel("predicted time [us]")
    axes.set_title(pareto.name)
    axes.legend()
    figure.tight_layout()
    try:
        with whole_file(Path(path), "name another place") as draft:
            figure.savefig(draft, format=Path(path).suffix.removeprefix(".") or None)
    finally:
        plt.close(figure)
