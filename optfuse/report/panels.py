"""A large schedule in four panels: where the time goes, live memory, the largest kernels, and what differences save."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from optfuse.problem.instance import Instance
from optfuse.report.lanes import Lanes, lanes
from optfuse.report.table import Difference, KernelRow, kernel_rows
from optfuse.report.trace import kernel_label
from optfuse.solver.result import SolveResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

US = 1_000_000
MIB = 1 << 20

#: Colours that stay apart for the colour-blind.
GREEDY, CHOSEN, LIBRARY = "#c2570c", "#0b69a3", "#9ca3af"
PARTS = (
    ("library calls", LIBRARY, lambda row: row.kind != "loop"),
    ("generated, bound by memory", "#0b69a3", lambda row: row.kind == "loop" and row.bound_by == "memory"),
    ("generated, bound by compute", "#c2570c", lambda row: row.kind == "loop" and row.bound_by != "memory"),
)
LARGEST = 12
LETTERS = 44


def draw_panels(figure: FigureBase, instance: Instance, result: SolveResult, found: Sequence[Difference]) -> None:
    """Fill a figure, or a part of one."""
    sides = {"greedy": kernel_rows(instance, result.greedy_solution), "chosen": kernel_rows(instance, result.solution)}
    grid = figure.add_gridspec(2, 2, height_ratios=(0.9, 1.0), width_ratios=(1.0, 1.0))
    panels = [figure.add_subplot(grid[row, column]) for row in (0, 1) for column in (0, 1)]
    _parts(panels[0], sides, result)
    _memory(panels[1], sides, [lanes(instance, side) for side in (result.greedy_solution, result.solution)])
    _largest(panels[2], sides["chosen"])
    _savings(panels[3], found)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)


def _parts(axes: Axes, sides: dict[str, tuple[KernelRow, ...]], result: SolveResult) -> None:
    for place, rows in enumerate(sides.values()):
        left = 0.0
        for label, color, holds in PARTS:
            mine = [row for row in rows if holds(row)]
            width = sum(row.predicted_ps for row in mine) / US
            axes.barh(place, width, left=left, color=color, height=0.6, label=label if place == 0 else None)
            if width > 0.08 * max(result.objective, result.greedy_objective) / US:
                text = f"{width:,.0f} us\n{len(mine)} kernels"
                axes.text(left + width / 2, place, text, ha="center", va="center", color="white", fontsize=8)
            left += width
        axes.text(left, place, f" {left:,.1f}", va="center", fontsize=8)
    axes.axvline(result.bound / US, color="black", linestyle="--", linewidth=1, label="proven lower bound")
    axes.set_yticks(range(len(sides)), [f"{side} ({len(rows)})" for side, rows in sides.items()])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("predicted time [us]")
    axes.set_title("where the time goes", fontsize=10, loc="left")
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=4, frameon=False)


def _memory(axes: Axes, sides: dict[str, tuple[KernelRow, ...]], timed: Sequence[Lanes | None]) -> None:
    for (side, rows), color, found in zip(sides.items(), (GREEDY, CHOSEN), timed, strict=True):
        if not rows:
            continue
        ends = list(accumulate(row.predicted_ps / US for row in rows))
        if found is not None:
            ends = [at / US for at in (*found.launches[1:], found.makespan)]
        live = [row.live_bytes / MIB for row in rows]
        peak = f"{side}, peak {max(live):,.1f} MiB"
        axes.step([0.0, *ends], [*live, live[-1]], where="post", color=color, linewidth=1.2, label=peak)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("predicted time [us]")
    axes.set_ylabel("live memory [MiB]")
    axes.set_title("memory over the run", fontsize=10, loc="left")
    axes.legend(fontsize=8, frameon=False)


def _largest(axes: Axes, rows: Sequence[KernelRow]) -> None:
    generated = sorted((row for row in rows if row.kind == "loop"), key=lambda row: -row.predicted_ps)[:LARGEST]
    labels = [_cut(kernel_label(row)) for row in generated]
    colors = [PARTS[1][1] if row.bound_by == "memory" else PARTS[2][1] for row in generated]
    axes.barh(range(len(generated)), [row.predicted_ps / US for row in generated], color=colors, height=0.7)
    axes.set_yticks(range(len(generated)), labels, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("predicted time [us]")
    axes.set_title("largest generated kernels, chosen", fontsize=10, loc="left")


def _savings(axes: Axes, found: Sequence[Difference]) -> None:
    saved = [item.saved_ps / US for item in found]
    axes.set_title(f"what each of {len(found)} differences saves", fontsize=10, loc="left")
    if not found:
        axes.text(0.5, 0.5, "the chosen kernels are greedy's", ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    axes.bar(range(len(saved)), saved, color=[CHOSEN if value >= 0 else GREEDY for value in saved], width=0.9)
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set_xlabel("difference: plot(difference=N) draws one")
    axes.set_ylabel("saved [us]")
    axes.text(1, 0.95, f"together {sum(saved):,.1f} us", ha="right", transform=axes.transAxes, fontsize=9)


def _cut(text: str) -> str:
    return text if len(text) <= LETTERS else text[: LETTERS - 1] + "\N{HORIZONTAL ELLIPSIS}"
