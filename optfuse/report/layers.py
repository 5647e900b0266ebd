"""A layered drawing of a graph: boxes in rows from top to bottom, each below all that it follows.

The usual way (Sugiyama, Tagawa and Toda, 1981): rows by longest path, an order in each row by the mean place of the
neighbours, then places by least squares with the distance that the boxes need.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

#: Arrows that pass more rows than this are drawn straight; shorter ones have a lane between the boxes.
LANES = 8
SWEEPS = 6
#: A row of more boxes than this is folded into several.
WIDE = 16
LANE_WIDTH = 12.0


@dataclass(frozen=True, slots=True)
class Places:
    """``centers[k]`` is where box k's center is on the x axis, ``tops[k]`` its upper edge; y grows downwards.

    ``bends[arrow]`` are the points that an arrow passes on its way. ``width`` and ``height`` hold everything.
    """

    centers: tuple[float, ...]
    tops: tuple[float, ...]
    bends: tuple[tuple[tuple[float, float], ...], ...]
    width: float
    height: float


def place(
    sizes: Sequence[tuple[float, float]], arrows: Sequence[tuple[int, int]], gaps: tuple[float, float] = (24.0, 36.0)
) -> Places:
    """The places at which to draw boxes of the given sizes.

    Args:
        sizes: (width, height) of each box.
        arrows: Pairs of boxes; the first of a pair has the smaller number, so there is no cycle.
        gaps: The least distance of two boxes side by side, and of two rows.
    """
    rows, folded = _folded(_rows(len(sizes), arrows))
    widths = [width for width, _ in sizes]
    links, lanes = _with_lanes(rows, widths, arrows, folded)
    layers: list[list[int]] = [[] for _ in range(max(rows, default=-1) + 1)]
    for node, row in enumerate(rows):
        layers[row].append(node)
    neighbours = _neighbours(len(rows), links)
    _order(layers, neighbours)
    centers = _centers(layers, neighbours, widths, gaps[0])
    row_tops, row_ends = _heights(layers, sizes, gaps[1])
    bends = tuple(
        tuple((centers[node], (row_tops[rows[node]] + row_ends[rows[node]]) / 2) for node in lane) for lane in lanes
    )
    count = len(sizes)
    return Places(
        centers=tuple(centers[:count]),
        tops=tuple(row_tops[rows[box]] for box in range(count)),
        bends=bends,
        width=max((centers[node] + widths[node] / 2 for node in range(len(rows))), default=0.0),
        height=max(row_ends, default=0.0),
    )


def _rows(count: int, arrows: Sequence[tuple[int, int]]) -> list[int]:
    """The row of each box: as high as what it follows allows; boxes that follow nothing, just above their first use."""
    rows = [0] * count
    for source, target in sorted(arrows, key=lambda arrow: arrow[1]):
        rows[target] = max(rows[target], rows[source] + 1)
    followed: dict[int, int] = {}
    for source, target in arrows:
        followed[source] = min(followed.get(source, rows[target]), rows[target])
    follows = {target for _, target in arrows}
    return [followed[box] - 1 if box in followed and box not in follows else row for box, row in enumerate(rows)]


def _folded(rows: Sequence[int]) -> tuple[list[int], frozenset[int]]:
    """The same rows, where one that is too wide becomes several; and which rows are parts of such a one."""
    members: list[list[int]] = [[] for _ in range(max(rows, default=-1) + 1)]
    for box, row in enumerate(rows):
        members[row].append(box)
    places = [0] * len(rows)
    folded: set[int] = set()
    next_row = 0
    for boxes in members:
        length = len(boxes) if len(boxes) <= WIDE else max(WIDE, round(1.4 * len(boxes) ** 0.5))
        parts = range(0, len(boxes), length)
        for start in parts:
            for box in boxes[start : start + length]:
                places[box] = next_row
            if len(parts) > 1:
                folded.add(next_row)
            next_row += 1
    return places, frozenset(folded)


def _with_lanes(
    rows: list[int], widths: list[float], arrows: Sequence[tuple[int, int]], without: Collection[int]
) -> tuple[list[tuple[int, int]], list[list[int]]]:
    """Links between neighbouring rows, and each arrow's lane: points in the rows it passes, appended to the boxes.

    Arrows of one box share their points in a row. Rows ``without`` have no room for points.
    """
    links: list[tuple[int, int]] = []
    lanes: list[list[int]] = []
    shared: dict[tuple[int, int], int] = {}
    for source, target in arrows:
        lane: list[int] = []
        last = source
        if rows[target] - rows[source] <= LANES:
            for row in range(rows[source] + 1, rows[target]):
                if row in without:
                    continue
                point = shared.get((source, row))
                if point is None:
                    point = shared[source, row] = len(rows)
                    rows.append(row)
                    widths.append(LANE_WIDTH)
                    links.append((last, point))
                lane.append(point)
                last = point
            links.append((last, target))
        lanes.append(lane)
    return links, lanes


def _neighbours(count: int, links: Sequence[tuple[int, int]]) -> tuple[list[list[int]], list[list[int]]]:
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for source, target in links:
        below[source].append(target)
        above[target].append(source)
    return above, below


def _order(layers: list[list[int]], neighbours: tuple[list[list[int]], list[list[int]]]) -> None:
    """Sort each row by the mean place of its neighbours, downwards and upwards in turn."""
    position = {node: place for layer in layers for place, node in enumerate(layer)}
    for sweep in range(SWEEPS):
        near = neighbours[sweep % 2]
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            wanted = {
                node: sum(position[other] for other in near[node]) / len(near[node]) if near[node] else position[node]
                for node in layer
            }
            layer.sort(key=lambda node: (wanted[node], position[node]))
            for place_in_row, node in enumerate(layer):
                position[node] = place_in_row


def _centers(
    layers: Sequence[Sequence[int]],
    neighbours: tuple[list[list[int]], list[list[int]]],
    widths: Sequence[float],
    gap: float,
) -> list[float]:
    """Places near the neighbours' mean, row by row, downwards and upwards in turn; the leftmost box begins at zero."""
    centers = [0.0] * len(widths)
    # What a long chain hangs on keeps in line; what ends soon makes room.
    weights = [float(height * height) for height in _chains(layers, neighbours[1])]
    for sweep in range(SWEEPS + 1):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            near = neighbours[0] if sweep % 2 == 0 else neighbours[1]
            wanted = [_mean(near[node], centers, weights) if near[node] else centers[node] for node in layer]
            places = _spread(wanted, [widths[node] for node in layer], [weights[node] for node in layer], gap)
            for node, center in zip(layer, places, strict=True):
                centers[node] = center
    left = min((centers[node] - widths[node] / 2 for node in range(len(widths))), default=0.0)
    return [center - left for center in centers]


def _mean(nodes: Sequence[int], values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(values[node] * weights[node] for node in nodes) / sum(weights[node] for node in nodes)


def _chains(layers: Sequence[Sequence[int]], below: Sequence[Sequence[int]]) -> list[int]:
    """By box, the length of the longest chain that begins at it."""
    heights = [1] * len(below)
    for layer in reversed(layers):
        for node in layer:
            heights[node] += max((heights[other] for other in below[node]), default=0)
    return heights


def _spread(wanted: Sequence[float], widths: Sequence[float], weights: Sequence[float], gap: float) -> list[float]:
    """The places closest to those wanted, by weighted least squares, at which boxes in this order do not touch.

    Without the distances that the boxes need, places must not fall: neighbours that would are pooled at their mean.
    """
    offsets: list[float] = []
    reach = 0.0
    for number, width in enumerate(widths):
        reach += (widths[number - 1] + width) / 2 + gap if number else 0.0
        offsets.append(reach)
    pools: list[tuple[float, float, int]] = []
    for want, offset, weight in zip(wanted, offsets, weights, strict=True):
        mean, total, size = want - offset, weight, 1
        while pools and pools[-1][0] > mean:
            before, heft, members = pools.pop()
            mean, total, size = (mean * total + before * heft) / (total + heft), total + heft, size + members
        pools.append((mean, total, size))
    base = [mean for mean, _, size in pools for _ in range(size)]
    return [mean + offset for mean, offset in zip(base, offsets, strict=True)]


def _heights(
    layers: Sequence[Sequence[int]], sizes: Sequence[tuple[float, float]], gap: float
) -> tuple[list[float], list[float]]:
    """The upper and lower edge of each row."""
    tops: list[float] = []
    ends: list[float] = []
    top = 0.0
    for layer in layers:
        tops.append(top)
        end = top + max((sizes[node][1] for node in layer if node < len(sizes)), default=0.0)
        ends.append(end)
        top = end + gap
    return tops, ends
