"""The cost of plans against a size that changes, as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optfuse.solver.sizes.size_box import SizeBox
from optfuse.solver.sizes.size_regions import SizeRegions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

US = 1_000_000


def plot_sizes(regions: SizeRegions | SizeBox) -> Figure:
    """Each plan's time over the bound of its size, by size, and lines where one plan gives way to another.

    Of two sizes: what the schedule's own plan loses at each pair.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axes = figure.subplots()
    if isinstance(regions, SizeBox):
        _plot_box(axes, regions)
        return figure
    for number, solved in enumerate(regions.plans):
        held = [(point.size, loss) for point in regions.points if (loss := point.loss(number)) is not None]
        axes.plot([size for size, _ in held], [100 * loss for _, loss in held], "o-", label=f"plan of size {solved}")
    for size in regions.switches:
        axes.axvline(size, color="0.6", linestyle=":")
    sizes = [point.size for point in regions.points]
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set(xlabel="size", ylabel="time above the bound [%]", ylim=(0, None))
    times = axes.twinx()
    times.plot(sizes, [point.best / US for point in regions.points], "--", color="0.5", label="best time")
    times.set(ylabel="time of the best schedule [us]", yscale="log")
    axes.legend(loc="upper left", fontsize=8)
    return figure


def _plot_box(axes: Axes, box: SizeBox) -> None:
    for point in box.points:
        loss = point.loss(0)
        text = "does not hold" if loss is None else f"{loss:.1%}"
        axes.annotate(text, point.size, ha="center", va="bottom", xytext=(0, 4), textcoords="offset points")
    axes.scatter(*zip(*(point.size for point in box.points), strict=True), color="0.3")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for sizes, setter in zip(
        zip(*(p.size for p in box.points), strict=True), (axes.set_xticks, axes.set_yticks), strict=True
    ):
        ticks = sorted(set(sizes))
        setter(ticks, [str(size) for size in ticks])
    axes.minorticks_off()
    axes.margins(0.15)
    first, second = box.plans[0]
    axes.set(xlabel="first size", ylabel="second size", title=f"time above the bound, plan of {first} x {second}")
