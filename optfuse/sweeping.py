"""Time against memory, as a table for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optfuse.problem.instance import Instance
from optfuse.report.pareto import pareto_rows
from optfuse.schedule import Schedule
from optfuse.solve.options import SolveOptions
from optfuse.solve.pareto import sweep

if TYPE_CHECKING:
    import pandas as pd


def pareto(problem: Instance | Schedule, *, points: int = 8, options: SolveOptions | None = None) -> pd.DataFrame:
    """The cheapest schedule within each of a row of caps on peak memory, a row a cap, the highest first.

    Parameters
    ----------
    problem
        A fusion problem, or the schedule of a graph whose problem it is.
    points
        How many caps, from the peak of the cheapest schedule down to what no schedule can be below.
    options
        As for ``optimize``; the time limit holds for each point.

    Returns
    -------
    DataFrame
        Columns ``cap_bytes``, ``status`` (OPTIMAL, FEASIBLE, INFEASIBLE: proven that none is within the cap, UNKNOWN:
        none found), ``peak_memory_bytes``, ``objective`` and ``bound`` (picoseconds under the model), ``gap``,
        ``kernels``, ``copied_ops`` (ops computed again) and ``floor_bytes`` (no schedule has a lower peak).
    """
    import pandas as pd

    instance = problem.instance if isinstance(problem, Schedule) else problem
    return pd.DataFrame(pareto_rows(sweep(instance, SolveOptions() if options is None else options, points)))
