"""Where a plan holds when two sizes change: its cost beside the bound on a grid over both, its corners among it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement, product

from optfuse.problem.instance import Instance
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.sizes.size_plans import FIGURES, SizePlans, SizePoint
from optfuse.solver.sizes.size_regions import grid

Pair = tuple[int, int]
#: Of both sizes, the least and the most.
Box = tuple[Pair, Pair]


@dataclass(frozen=True, slots=True)
class SizeBox:
    """Where plans hold over the ranges of two sizes.

    Attributes:
        plans: The sizes at which each was solved; the first is the schedule's own.
        points: The sizes that were priced, a grid in the order of both sizes.
        reasons: By sizes, why the schedule's own plan does not hold there.
    """

    plans: tuple[Pair, ...]
    points: tuple[SizePoint[Pair], ...]
    reasons: dict[Pair, str] = field(default_factory=dict)

    def within(self, share: float) -> tuple[Box, ...]:
        """The largest boxes of priced sizes in which the schedule's own plan provably loses at most ``share``."""
        held = {point.size for point in self.points if (loss := point.loss(0)) is not None and loss <= share}
        first, second = (sorted({point.size[axis] for point in self.points}) for axis in (0, 1))
        found = [
            (rows, columns)
            for rows in combinations_with_replacement(first, 2)
            for columns in combinations_with_replacement(second, 2)
            if all(
                pair in held
                for pair in product(
                    (a for a in first if rows[0] <= a <= rows[1]), (b for b in second if columns[0] <= b <= columns[1])
                )
            )
        ]
        return tuple(box for box in found if not any(box != other and _inside(box, other) for other in found))

    def __str__(self) -> str:
        lines = [f"{'sizes':>14} {FIGURES}"]
        lines += [f"{_text(point.size):>14} {point.figures()}" for point in self.points]
        own = _text(self.plans[0])
        for share in (0.0, 0.01, 0.05):
            boxes = ", ".join(f"{a}..{b} x {c}..{d}" for (a, b), (c, d) in self.within(share)) or "no priced sizes"
            lines.append(f"the plan of {own} is within {share:.0%} of the best one at {boxes}")
        for number, plan in enumerate(self.plans[1:], start=1):
            sizes = ", ".join(_text(point.size) for point in self.points if point.plan == number) or "none"
            lines.append(f"the plan of {_text(plan)} is the best one at {sizes}")
        lines += [f"at {_text(sizes)} the plan of {own} does not hold: {why}" for sizes, why in self.reasons.items()]
        return "\n".join(lines)


def _text(sizes: Pair) -> str:
    return f"{sizes[0]} x {sizes[1]}"


def _inside(box: Box, other: Box) -> bool:
    return all(low >= least and high <= most for (low, high), (least, most) in zip(box, other, strict=True))


def size_box(
    problem: Callable[[Pair], Sequence[Instance]],
    hint: Pair,
    ranges: Box,
    options: SolveOptions,
    *,
    points: int = 3,
    threshold: float = 0.05,
) -> SizeBox:
    """Where the plan of the sizes ``hint`` holds over both ranges, and the plans that are better elsewhere.

    ``points``: about how many of each size are solved, each with each; the rest is as in ``size_regions``.
    """
    plans = SizePlans(problem, options)
    first, second = (grid(*span, size, points) for span, size in zip(ranges, hint, strict=True))
    pairs = list(product(first, second))
    furthest_first = sorted(pairs, key=lambda pair: -max(abs(a - b) / (a + b) for a, b in zip(pair, hint, strict=True)))
    chosen = plans.needed(hint, furthest_first, threshold)
    found = tuple(plans.priced(pair, chosen) for pair in pairs)
    return SizeBox(tuple(chosen), found, {pair: why for pair in pairs if (why := plans.why(hint, pair))})
