"""Instances, solutions and prices of plans at several sizes, each made once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from optfuse.problem.instance import Instance
from optfuse.problem.solution import Solution
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.result import SolveResult
from optfuse.solver.sizes.transfer import transferred
from optfuse.solver.solve import solve

#: What a plan goes by, the size at which it was solved: a number, or one for each of several sizes.
At = TypeVar("At", bound=Hashable)


@dataclass(frozen=True, slots=True)
class SizePoint(Generic[At]):
    """A size, or several, at which plans were priced.

    Attributes:
        best, bound: Picoseconds of the best schedules that were found here, and what no schedule goes below.
        costs: By plan, its picoseconds; None where it does not hold.
    """

    size: At
    best: int
    bound: int
    costs: tuple[int | None, ...]

    def loss(self, plan: int) -> float | None:
        """A proven bound on the share that a plan loses against the best one; None where it does not hold."""
        cost = self.costs[plan]
        return None if cost is None else cost / self.bound - 1 if self.bound else 0.0

    @property
    def plan(self) -> int:
        """The number of the cheapest plan here, the schedule's own among equals."""
        return min((cost, k) for k, cost in enumerate(self.costs) if cost is not None)[1]

    def figures(self) -> str:
        """The best cost, the bound and each plan's loss, as a row of a table."""
        losses = [self.loss(plan) for plan in range(len(self.costs))]
        shown = "  ".join("does not hold" if loss is None else f"{loss:.1%}" for loss in losses)
        return f"{self.best / 1e6:>10,.1f} {self.bound / 1e6:>10,.1f}  {shown}"


#: What stands above the rows of ``SizePoint.figures``.
FIGURES = f"{'best us':>10} {'bound us':>10}  plans' loss"


@dataclass(slots=True)
class SizePlans(Generic[At]):
    """Instances, solutions and prices by size; ``problem`` states the instances of one."""

    problem: Callable[[At], Sequence[Instance]]
    options: SolveOptions
    _instances: dict[At, Sequence[Instance]] = field(default_factory=dict, init=False)
    _solved: dict[At, Sequence[SolveResult]] = field(default_factory=dict, init=False)
    _prices: dict[tuple[At, At], int | str] = field(default_factory=dict, init=False)

    def best(self, size: At) -> int:
        """Picoseconds of the size's own plan."""
        return sum(result.objective for result in self._results(size))

    def bound(self, size: At) -> int:
        """A lower bound on the cost of every plan at this size."""
        return sum(result.bound for result in self._results(size))

    def cost(self, plan: At, size: At) -> int | None:
        """Picoseconds of a plan at a size; None where it does not hold."""
        price = self._price(plan, size)
        return price if isinstance(price, int) else None

    def why(self, plan: At, size: At) -> str:
        """Why a plan does not hold at a size; empty where it does."""
        price = self._price(plan, size)
        return "" if isinstance(price, int) else price

    def priced(self, size: At, plans: Sequence[At]) -> SizePoint[At]:
        """The figures of a size, and what some plans cost there."""
        return SizePoint(size, self.best(size), self.bound(size), tuple(self.cost(plan, size) for plan in plans))

    def needed(self, hint: At, sizes: Sequence[At], threshold: float) -> list[At]:
        """The plan of ``hint``, and those of sizes at which all taken before them lose more than the threshold."""
        chosen = [hint]
        for size in sizes:
            best = self.best(size)
            if all((cost := self.cost(plan, size)) is None or cost > (1 + threshold) * best for plan in chosen):
                chosen.append(size)
        return chosen

    def _results(self, size: At) -> Sequence[SolveResult]:
        if size not in self._solved:
            self._solved[size] = [solve(instance, self.options) for instance in self._stated(size)]
        return self._solved[size]

    def _stated(self, size: At) -> Sequence[Instance]:
        if size not in self._instances:
            self._instances[size] = self.problem(size)
        return self._instances[size]

    def _price(self, plan: At, size: At) -> int | str:
        if (plan, size) not in self._prices:
            self._prices[plan, size] = self._transferred(plan, size)
        return self._prices[plan, size]

    def _transferred(self, plan: At, size: At) -> int | str:
        if plan == size:
            return self.best(size)
        here, there = self._stated(plan), self._stated(size)
        if len(here) != len(there):
            return "its graph is split otherwise"
        total = 0
        for own, other, result in zip(here, there, self._results(plan), strict=True):
            moved: Solution | str = transferred(result.solution, own, other)
            if isinstance(moved, str):
                return moved
            total += moved.objective
        return total
