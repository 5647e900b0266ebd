"""Time against memory: the cheapest schedule within each of a row of caps, and what is proven of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Literal

from optfuse.errors import InfeasibleError, InvalidOptionError
from optfuse.problem.instance import Instance
from optfuse.problem.solution import Solution
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.joint.memory_cap import within_cap
from optfuse.solver.joint.peak_bound import least_peak_bound
from optfuse.solver.solve import solve

PointStatus = Literal["OPTIMAL", "FEASIBLE", "INFEASIBLE", "UNKNOWN"]


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """What is known of one cap. Sizes in bytes, times in picoseconds under the model.

    ``solution`` is the cheapest schedule found within the cap; None where none was found, and then ``status`` is
    INFEASIBLE if there is none, proven, and UNKNOWN otherwise. No schedule within the cap costs less than ``bound``.
    """

    cap: int
    status: PointStatus
    solution: Solution | None
    bound: int


@dataclass(frozen=True, slots=True)
class Pareto:
    """Points from the highest cap, that of the schedule which is cheapest without one, to the lowest.

    No schedule at all has a lower peak than ``floor`` bytes.
    """

    name: str
    points: tuple[ParetoPoint, ...]
    floor: int


def sweep(instance: Instance, options: SolveOptions, points: int = 8) -> Pareto:
    """The cheapest schedule within each of several memory caps, from its own peak down to the proven least peak.

    They are evenly spread until one is not met; from then on each halves the way from what was to what was not.
    ``options.time_limit`` holds for each point. Each starts from the schedules of those before it.

    Raises:
        InvalidOptionError: When there are fewer than two points.
    """
    if points < 2:
        raise InvalidOptionError(f"a sweep needs at least 2 points, not {points}")
    free = replace(instance, rules=replace(instance.rules, peak_memory=None))
    options = replace(options, peak_memory=None)
    best = solve(free, replace(options, recompute=False))
    known = [best.solution, best.greedy_solution]
    if options.recompute:
        copied = solve(free, options)
        known.append(copied.solution)
        best = copied if copied.objective < best.objective else replace(best, bound=copied.bound)
    floor = least_peak_bound(free, recompute=options.recompute)
    high = best.solution.peak_bytes
    proven = best.bound == best.objective
    found = [ParetoPoint(high, "OPTIMAL" if proven else "FEASIBLE", best.solution, best.bound)]
    lowest, failed = high, floor
    for left in range(points - 1, 0, -1):
        cap = lowest - (lowest - failed) // (left if failed == floor else 2)
        if cap >= lowest:
            break
        point = _point(free, cap, known, best.bound, options)
        found.append(point)
        if point.solution is None:
            failed = cap
        else:
            known.append(point.solution)
            lowest = min(lowest, point.solution.peak_bytes)
    return Pareto(instance.name, _consistent(sorted(found, key=lambda point: -point.cap)), floor)


def _point(instance: Instance, cap: int, known: list[Solution], bound: int, options: SolveOptions) -> ParetoPoint:
    capped = replace(instance, rules=replace(instance.rules, peak_memory=cap))
    try:
        found = within_cap(capped, known, bound, options, time.monotonic() + options.time_limit)
    except InfeasibleError as error:
        return ParetoPoint(cap, "INFEASIBLE" if error.proven else "UNKNOWN", None, bound)
    solution = replace(found.solution, instance_digest=known[0].instance_digest)
    return ParetoPoint(cap, "FEASIBLE", solution, found.bound)


def _consistent(points: list[ParetoPoint]) -> tuple[ParetoPoint, ...]:
    """The points with schedules carried over to higher caps, and bounds to lower ones, where that improves them."""
    bound = 0
    bounded: list[ParetoPoint] = []
    for point in points:
        bound = max(bound, point.bound)
        bounded.append(replace(point, bound=bound))
    best: Solution | None = None
    settled: list[ParetoPoint] = []
    for point in reversed(bounded):
        if point.solution is not None and (best is None or point.solution.objective < best.objective):
            best = point.solution
        if best is None:
            settled.append(point)
        else:
            bound = min(point.bound, best.objective)
            status: PointStatus = "OPTIMAL" if bound == best.objective else "FEASIBLE"
            settled.append(ParetoPoint(point.cap, status, best, bound))
    return tuple(reversed(settled))
