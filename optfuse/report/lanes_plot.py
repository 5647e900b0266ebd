"""Communication beside computation as a picture: greedy's lanes above the chosen schedule's, on one time axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from optfuse.problem.instance import Instance
from optfuse.problem.solution import Solution
from optfuse.report.lanes import Lanes, Span, lanes
from optfuse.report.panels import CHOSEN, GREEDY, LIBRARY
from optfuse.solver.result import SolveResult

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

US = 1_000_000
TRANSFER, EXPOSED = "#0f7a4d", "#b42318"
#: In lanes: how tall a span is, and what lies between the two schedules, for their titles.
TALL, BETWEEN = 0.8, 0.9


def lanes_inches(instance: Instance) -> float:
    """How tall both schedules' lanes are; 0 where nothing communicates."""
    channels = {op.channel for op in instance.ops if op.transfer_ps}
    return 1.7 + 0.6 * (1 + len(channels)) if channels else 0.0


def add_lanes(figure: Figure, instance: Instance, result: SolveResult, inches: float) -> None:
    """Draw the lanes along the bottom of a figure, as tall as ``lanes_inches`` says."""
    width, height = figure.get_size_inches()
    place = (1.05 / width, 0.8 / height, 1 - 1.25 / width, (inches - 1.0) / height)
    draw_lanes(figure.add_axes(place), instance, result)


def draw_lanes(axes: Axes, instance: Instance, result: SolveResult) -> None:
    """Fill axes with both schedules of a graph that communicates: kernels, exposed waits, transfers, and the bound."""
    sides = (("greedy", result.greedy_solution, GREEDY), ("chosen", result.solution, CHOSEN))
    ticks: list[tuple[float, str]] = []
    row = 0.0
    for name, solution, color in sides:
        found = lanes(instance, solution)
        if found is None:
            continue
        title = f"{name}: {found.makespan / US:,.1f} us, {found.exposed_ps / US:,.1f} us exposed"
        axes.text(0, row - 0.55, title, color=color, fontsize=9, fontweight="bold", va="bottom")
        ticks += _draw_side(axes, found, solution, instance, color, row)
        row += 1 + len(found.communicators) + BETWEEN
    handles = _patches()
    overlap = result.statistics.overlap
    if overlap is not None:
        label = f"no order of these kernels takes less: {overlap.bound / US:,.1f} us"
        half = (row - BETWEEN) / 2  # beside the chosen schedule alone
        handles += axes.plot([overlap.bound / US] * 2, [half, row - BETWEEN - 0.4], "k--", linewidth=1, label=label)
    axes.set_yticks([at for at, _ in ticks], [label for _, label in ticks], fontsize=8)
    axes.set_ylim(row - BETWEEN - 0.4, -1.1)
    axes.set_xlim(left=0)
    axes.set_xlabel("predicted time [us]")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.45, 0), "borderaxespad": 5}
    axes.legend(handles=handles, fontsize=7, ncols=3, frameon=False, **below)


def _draw_side(
    axes: Axes, found: Lanes, solution: Solution, instance: Instance, color: str, row: float
) -> list[tuple[float, str]]:
    """Draw the lanes of one schedule from a row on; returns where each is, and its name."""
    kinds = [instance.ops[kernel.ops[0]].kind for kernel in solution.kernels]
    generated = [span for span in found.device if kinds[span.kernel] == "loop"]
    library = [span for span in found.device if kinds[span.kernel] != "loop"]
    _draw(axes, generated, row, facecolor=color)
    _draw(axes, library, row, facecolor=LIBRARY)
    _draw(axes, found.exposed, row, facecolor="none", edgecolor=EXPOSED, hatch="/////", linewidth=0.4)
    places = [(row, "kernels")]
    for channel, spans in found.communicators.items():
        places.append((row + len(places), f"communicator {channel}"))
        _draw(axes, spans, places[-1][0], facecolor=TRANSFER)
    return places


def _draw(axes: Axes, spans: Sequence[Span], row: float, **style: Any) -> None:
    places = [(span.begin / US, (span.end - span.begin) / US) for span in spans]
    style = {"edgecolor": "white", "linewidth": 0.3, **style}
    axes.broken_barh(places, (row - TALL / 2, TALL), **style)


def _patches() -> list[Artist]:
    """What the legend shows of the spans' colours."""
    from matplotlib.patches import Patch

    generated = ((GREEDY, "generated kernel, greedy"), (CHOSEN, "generated kernel, chosen"))
    plain = (*generated, (LIBRARY, "library call"), (TRANSFER, "transfer"))
    return [
        *(Patch(color=color, label=label) for color, label in plain),
        Patch(facecolor="none", edgecolor=EXPOSED, hatch="/////", linewidth=0.4, label="exposed: the device waits"),
    ]
