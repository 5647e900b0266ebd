"""Where a plan holds when a size changes: its cost beside the bound of several sizes, and plans that are better.

A plan is solved at one size. At another its kernels are priced again, and that size's own instance is solved, which
gives the best cost and a bound. Where the plan loses more than a threshold, the plan of such a size is taken too, and
bisection finds the size from which on it is the better one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from optfuse.problem.instance import Instance
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.sizes.size_plans import FIGURES, SizePlans, SizePoint

#: Bisection ends where the two sizes that a switch lies between differ by no more than this share.
CLOSE = 0.02

Problem = Callable[[int], Sequence[Instance]]


@dataclass(frozen=True, slots=True)
class SizeRange:
    """Sizes, both ends included, that one plan is for. ``loss``: its largest one at the sizes that were priced."""

    least: int
    most: int
    plan: int
    loss: float


@dataclass(frozen=True, slots=True)
class SizeRegions:
    """Where plans hold over a range of sizes.

    Attributes:
        plans: The size at which each was solved; the first is the schedule's own.
        points: The sizes that were priced, with the best cost and bound of each, in order.
        ranges: Which plan is for which sizes; between two priced sizes the figures are not proven.
        reasons: By size, why the schedule's own plan does not hold there.
    """

    plans: tuple[int, ...]
    points: tuple[SizePoint[int], ...]
    ranges: tuple[SizeRange, ...]
    reasons: dict[int, str] = field(default_factory=dict)

    @property
    def switches(self) -> tuple[int, ...]:
        """The first size of each range but the first one."""
        return tuple(one.least for one in self.ranges[1:])

    def plan_at(self, size: int) -> int:
        """The number of the plan that is for a size; beyond the ends, that of the nearest range."""
        return next((one.plan for one in self.ranges if size <= one.most), self.ranges[-1].plan)

    def solved_at(self, size: int) -> int:
        """The size at which the plan that is for a size was solved."""
        return self.plans[self.plan_at(size)]

    def within(self, share: float) -> tuple[tuple[int, int], ...]:
        """Ranges (least, most) of priced sizes at which the schedule's own plan provably loses at most ``share``."""
        runs: list[tuple[int, int]] = []

        def holds(point: SizePoint[int]) -> bool:
            loss = point.loss(0)
            return loss is not None and loss <= share

        for held, some in groupby(self.points, key=holds):
            sizes = [point.size for point in some]
            if held:
                runs.append((sizes[0], sizes[-1]))
        return tuple(runs)

    def __str__(self) -> str:
        lines = [f"{'size':>8} {FIGURES}"]
        lines += [f"{point.size:>8} {point.figures()}" for point in self.points]
        for share in (0.0, 0.01, 0.05):
            runs = ", ".join(f"{least}..{most}" for least, most in self.within(share)) or "no size that was priced"
            lines.append(f"the plan of size {self.plans[0]} is within {share:.0%} of the best one at {runs}")
        for one in self.ranges:
            lines.append(
                f"{one.least}..{one.most}: the plan of size {self.plans[one.plan]}, {one.loss:.1%} lost at most"
            )
        own = self.plans[0]
        lines += [f"at size {size} the plan of size {own} does not hold: {why}" for size, why in self.reasons.items()]
        return "\n".join(lines)


def grid(least: int, most: int, hint: int, points: int) -> list[int]:
    """About ``points`` sizes from the least to the most, in equal steps of their logarithms, and the hint."""
    steps = max(1, points - 1)
    ratio = (most / max(1, least)) ** (1 / steps)
    between = {min(most, round(max(1, least) * ratio**k)) for k in range(steps)}
    return sorted({least, most, hint, *between})


def size_regions(
    problem: Problem,
    hint: int,
    least: int,
    most: int,
    options: SolveOptions,
    *,
    points: int = 7,
    threshold: float = 0.05,
) -> SizeRegions:
    """Where the plan of size ``hint`` holds from ``least`` to ``most``, and the plans that are better elsewhere.

    Args:
        problem: The instances of a size: one, or those of a training step's two graphs.
        points: About how many sizes are solved.
        threshold: The share that a plan may lose before another one is taken.
    """
    plans = SizePlans(problem, options)
    sizes = grid(least, most, hint, points)
    furthest_first = sorted(sizes, key=lambda size: -abs(size - hint) / (size + hint))
    chosen = plans.needed(hint, furthest_first, threshold)
    found = [plans.priced(size, chosen) for size in sizes]
    uses = _uses(found, sizes.index(hint), threshold)
    ranges = _ranges(plans, found, chosen, uses, threshold)
    reasons = {size: why for size in sizes if (why := plans.why(hint, size))}
    return SizeRegions(tuple(chosen), tuple(found), ranges, reasons)


def _uses(points: Sequence[SizePoint[int]], start: int, threshold: float) -> list[int]:
    """By priced size, the number of its plan: outward from the hint, its neighbour's while within the threshold."""
    uses = {start: 0}
    for order in (range(start - 1, -1, -1), range(start + 1, len(points))):
        now = 0
        for k in order:
            cost = points[k].costs[now]
            if cost is None or cost > (1 + threshold) * points[k].best:
                held = [(own, plan) for plan, own in enumerate(points[k].costs) if own is not None]
                now = min(held)[1]
            uses[k] = now
    return [uses[k] for k in range(len(points))]


def _ranges(
    plans: SizePlans[int],
    points: Sequence[SizePoint[int]],
    chosen: Sequence[int],
    uses: Sequence[int],
    threshold: float,
) -> tuple[SizeRange, ...]:
    ranges: list[SizeRange] = []
    least = points[0].size
    for plan, some in groupby(range(len(points)), key=lambda k: uses[k]):
        own = list(some)
        most = points[-1].size
        if own[-1] + 1 < len(points):
            below, above = points[own[-1]].size, points[own[-1] + 1].size
            pair = (chosen[plan], chosen[uses[own[-1] + 1]])
            most = _last_of(plans, pair, below, above, threshold, upward=below >= chosen[0])
        loss = max((points[k].loss(plan) or 0.0 for k in own), default=0.0)
        ranges.append(SizeRange(least, most, plan, loss))
        least = most + 1
    return tuple(ranges)


def _last_of(
    plans: SizePlans[int], pair: tuple[int, int], below: int, above: int, threshold: float, *, upward: bool
) -> int:
    """The last size at which to use the first plan of a pair, which is best at ``below``; the second is at ``above``.

    The plan nearer to the hint's size is kept until it loses more than the threshold to the other. ``upward``: that
    is the first one.
    """
    kept, other = pair if upward else reversed(pair)
    while above - below > max(1, CLOSE * above):
        middle = (below + above) // 2
        own, others = plans.cost(kept, middle), plans.cost(other, middle)
        keeps = own is not None and (others is None or own <= (1 + threshold) * others)
        below, above = (middle, above) if keeps == upward else (below, middle)
    return below
