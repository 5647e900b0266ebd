"""A schedule as a picture for notebooks: two partitions side by side when they are small, else their figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from optfuse.errors import InvalidOptionError
from optfuse.problem.cost import kernel_price
from optfuse.problem.instance import Instance
from optfuse.problem.solution import Kernel, Solution
from optfuse.report.flow import flow
from optfuse.report.lanes_plot import add_lanes, draw_lanes, lanes_inches
from optfuse.report.layers import Places, place
from optfuse.report.panels import CHOSEN, GREEDY, draw_panels
from optfuse.report.summary import certificate, change
from optfuse.report.table import Difference, differences
from optfuse.report.text import size_text
from optfuse.solver.result import SolveResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

US = 1_000_000

Marks = Mapping[int, str]

#: Up to so many kernels and ops a partition is drawn as boxes.
DRAWN_KERNELS = 24
DRAWN_OPS = 90
#: Ops written in a box, and letters of a name.
NAMED_OPS = 32
LETTERS = 30

#: Points of 1/72 inch: the font, a line of it, and room inside a box.
FONT, LINE, PAD = 7.0, 9.5, 6.0
LETTER = 0.62 * FONT
NARROWEST, LARGEST_INCHES = 480.0, 20.0

SAME_FILL, SAME_EDGE = "#f3f4f6", "#9ca3af"
LIBRARY_FILL = "#e5e7eb"
GREEDY_FILL, CHOSEN_FILL = "#fef3e8", "#ecf4fb"
#: A colour for each of greedy's kernels that the chosen solution partitions differently; marks its ops on both sides.
MARKS = ("#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#d55e00", "#0072b2", "#b8a900", "#7a5195")


def plot(instance: Instance, result: SolveResult, difference: int | None = None) -> Figure:
    """Greedy's kernels beside the chosen ones.

    A small graph is drawn: a box a kernel with its ops, bytes on the arrows, kernels that only one side has in colour.
    A large one is shown in figures: time by kind, live memory over time, the largest kernels, and what each difference
    saves. Either way a graph that communicates has both schedules' lanes: kernels, exposed waits and transfers in time.
    ``difference`` draws one of the places where the two part, 0 for the one that saves most.

    Raises:
        InvalidOptionError: When there is no such difference.
    """
    # matplotlib takes a second to import. Made by pyplot, the figure shows itself in a notebook; closed, only once.
    from matplotlib import pyplot as plt

    found = differences(instance, result.greedy_solution, result.solution)
    if difference is not None and not 0 <= difference < len(found):
        raise InvalidOptionError(f"difference must be one of the {len(found)} there are (from 0), not {difference}")
    sides = (result.greedy_solution, result.solution)
    changed = {kernel for item in found for kernel in (*item.before, *item.after)}
    strip = lanes_inches(instance) if difference is None else 0.0
    if difference is not None:
        item = found[difference]
        parts = zip(sides, (item.before, item.after), strict=True)
        pictures = [_picture(instance, side, kernels, changed, _marks([item])) for side, kernels in parts]
        title = f"{instance.name}: difference {difference} of {len(found)}, which saves {item.saved_ps / US:,.2f} us"
    elif max(len(side.kernels) for side in sides) <= DRAWN_KERNELS and len(instance.ops) <= DRAWN_OPS:
        pictures = [_picture(instance, side, side.kernels, changed, _marks(found)) for side in sides]
        title = headline(instance, result)
    else:
        figure = plt.figure(figsize=(13, 8.5 + strip), layout="constrained")
        if strip:
            grid = figure.add_gridspec(2, 1, height_ratios=(strip, 8.5))
            draw_lanes(figure.add_subfigure(grid[0]).add_subplot(), instance, result)
            draw_panels(figure.add_subfigure(grid[1]), instance, result, found)
        else:
            draw_panels(figure, instance, result, found)
        figure.suptitle(headline(instance, result), fontsize=11, x=0.01, ha="left")
        plt.close(figure)
        return figure
    if found:
        title += ". A square's colour is the kernel of greedy's that computes the op."
    figure = _side_by_side(plt, pictures, title, strip)
    if strip:
        add_lanes(figure, instance, result, strip)
    plt.close(figure)
    return figure


def headline(instance: Instance, result: SolveResult) -> str:
    """The figures and the certificate, on one line."""
    return (
        f"{instance.name}: {result.objective / US:,.1f} us predicted, greedy {result.greedy_objective / US:,.1f} us "
        f"({change(result.greedy_objective, result.objective)}); {certificate(result)}"
    )


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of a box: an op with the mark of greedy's kernel that computes it, or a remark."""

    text: str
    mark: str = ""
    dim: bool = False


@dataclass(frozen=True, slots=True)
class _Box:
    """A kernel as it is drawn."""

    head: str
    lines: tuple[_Line, ...]
    changed: bool
    library: bool

    @property
    def size(self) -> tuple[float, float]:
        letters = max(len(self.head) + 1, *(len(line.text) + 2 * bool(line.mark) for line in self.lines))
        return letters * LETTER + 2 * PAD, (1 + len(self.lines)) * LINE + 2 * PAD


@dataclass(frozen=True, slots=True)
class _Picture:
    """Kernels of one side, ready to draw; arrows have their text."""

    boxes: tuple[_Box, ...]
    arrows: tuple[tuple[int, int, str], ...]
    places: Places
    cost: int


def _picture(
    instance: Instance, solution: Solution, kernels: Sequence[Kernel], changed: Collection[Kernel], marks: Marks
) -> _Picture:
    everything = flow(instance, solution)
    numbers = tuple(k for k, kernel in enumerate(solution.kernels) if kernel in kernels)
    position = {number: place for place, number in enumerate(numbers)}
    times = Counter(op for kernel in solution.kernels for op in kernel.ops)
    inner = [a for a in everything.arrows if a.src in position and a.dst in position]
    boxes: list[_Box] = []
    cost = 0
    for number in numbers:
        kernel = solution.kernels[number]
        price = kernel_price(instance, kernel.ops, kernel.scheme, kernel.writes)
        cost += price.total
        lines = [
            _Line(_cut(instance.ops[op].name) + (" (copy)" if times[op] > 1 else ""), marks.get(op, ""))
            for op in kernel.ops
        ]
        if len(lines) > NAMED_OPS:
            lines = [*lines[: NAMED_OPS - 1], _Line(f"and {len(lines) - NAMED_OPS + 1} more", dim=True)]
        # What comes from outside the picture is an input of it.
        if outside := price.read_bytes - sum(a.bytes for a in inner if a.dst == number):
            lines.insert(0, _Line(f"in: {size_text(outside)}", dim=True))
        if everything.outputs[number]:
            lines.append(_Line(f"out: {size_text(everything.outputs[number])}", dim=True))
        library = instance.ops[kernel.ops[0]].kind != "loop"
        boxes.append(_Box(f"k{number}   {price.total / US:,.2f} us", tuple(lines), kernel in changed, library))
    pairs = [(position[a.src], position[a.dst]) for a in inner]
    labels = [size_text(a.bytes) if a.buffers else "order" for a in inner]
    return _Picture(
        boxes=tuple(boxes),
        arrows=tuple((*pair, label) for pair, label in zip(pairs, labels, strict=True)),
        places=place([box.size for box in boxes], pairs, (30.0, 34.0)),
        cost=cost,
    )


def _marks(found: Sequence[Difference]) -> Marks:
    """A colour for each op whose kernel differs, by greedy's kernel; neighbouring kernels have different colours."""
    kernels = [kernel for item in found for kernel in item.before]
    return {op: MARKS[number % len(MARKS)] for number, kernel in enumerate(kernels) for op in kernel.ops}


def _cut(name: str) -> str:
    return name if len(name) <= LETTERS else name[: LETTERS - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _side_by_side(plt: Any, pictures: Sequence[_Picture], title: str, strip: float) -> Figure:
    """Both pictures at one scale, at most as large as a screen, above a strip of so many inches."""
    margin, head = 12.0, 52.0
    natural = sum(max(picture.places.width, 150.0) for picture in pictures) + 4 * margin
    height = max(picture.places.height for picture in pictures) + 2 * margin + head
    width = max(natural, NARROWEST)
    scale = min(1.0, LARGEST_INCHES * 72 / width, 2 * LARGEST_INCHES * 72 / height)
    figure = plt.figure(figsize=(width * scale / 72, height * scale / 72 + strip))
    below = 72 * strip / scale
    tall = height + below
    text = "\n".join(wrap(title, int(width / 5)))
    figure.suptitle(text, fontsize=9 * scale, x=margin / width, ha="left", y=1 - 6 / tall, va="top")
    left = 0.0
    for picture, name, color in zip(pictures, ("greedy", "chosen"), (GREEDY, CHOSEN), strict=True):
        span = (max(picture.places.width, 150.0) + 2 * margin) * width / natural
        axes = figure.add_axes((left / width, below / tall, span / width, (height - head) / tall))
        left += span
        spare = (span - picture.places.width) / 2
        axes.set_xlim(-spare, picture.places.width + spare)
        axes.set_ylim(height - head - margin, -margin)
        axes.axis("off")
        count = len(picture.boxes)
        label = f"{name}: {count} kernel{'' if count == 1 else 's'}, {picture.cost / US:,.2f} us"
        axes.set_title(label, fontsize=9 * scale, color=color, fontweight="bold", pad=2)
        _draw(axes, picture, color, scale)
    return figure


def _draw(axes: Axes, picture: _Picture, color: str, scale: float) -> None:
    from matplotlib.patches import FancyBboxPatch, Rectangle

    fill = GREEDY_FILL if color == GREEDY else CHOSEN_FILL
    _draw_arrows(axes, picture, scale)
    style: dict[str, Any] = {"fontsize": FONT * scale, "family": "monospace", "va": "center", "zorder": 3}
    for box, center, top in zip(picture.boxes, picture.places.centers, picture.places.tops, strict=True):
        width, height = box.size
        left = center - width / 2
        plain = LIBRARY_FILL if box.library else SAME_FILL
        axes.add_patch(
            FancyBboxPatch(
                (left, top),
                width,
                height,
                boxstyle="square,pad=0" if box.library else "round,pad=0,rounding_size=4",
                facecolor=fill if box.changed else plain,
                edgecolor=color if box.changed else SAME_EDGE,
                linewidth=(1.4 if box.changed else 0.7) * scale,
                zorder=2,
            )
        )
        axes.text(left + PAD, top + PAD + LINE / 2, box.head, fontweight="bold", **style)
        for number, line in enumerate(box.lines, 1):
            y = top + PAD + (number + 0.5) * LINE
            x = left + PAD
            if line.mark:
                axes.add_patch(Rectangle((x, y - 0.3 * LINE), 0.6 * LINE, 0.6 * LINE, color=line.mark, zorder=3))
                x += 2 * LETTER
            axes.text(x, y, line.text, color="#6b7280" if line.dim else "#111827", parse_math=False, **style)


def _draw_arrows(axes: Axes, picture: _Picture, scale: float) -> None:
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    places = picture.places
    for (source, target, label), bends in zip(picture.arrows, places.bends, strict=True):
        start = (places.centers[source], places.tops[source] + picture.boxes[source].size[1])
        end = (places.centers[target], places.tops[target])
        points = [start, *bends, end]
        vertices, codes = [points[0]], [Path.MOVETO]
        for (x0, y0), (x1, y1) in pairwise(points):
            middle = (y0 + y1) / 2
            vertices += [(x0, middle), (x1, middle), (x1, y1)]
            codes += [Path.CURVE4] * 3
        order = label == "order"
        axes.add_patch(
            FancyArrowPatch(
                path=Path(vertices, codes),
                arrowstyle="-|>",
                mutation_scale=7 * scale,
                linewidth=0.8 * scale,
                linestyle="--" if order else "-",
                color="#6b7280",
                shrinkA=0,
                shrinkB=0,
                zorder=1,
            )
        )
        if not order:
            x, y = points[-1]
            style: dict[str, Any] = {"fontsize": 6 * scale, "color": "#374151", "ha": "center", "va": "center"}
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
            axes.text(x + (points[-2][0] - x) * 0.2, y - 13, label, bbox=box, zorder=4, **style)
