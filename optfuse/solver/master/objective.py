"""Objective: the cost of the chosen kernels, in picoseconds."""

from __future__ import annotations

from ortools.sat.python import cp_model

from optfuse.solver.master.master import Master
from optfuse.solver.master.variables import Variables


def add_objective(model: cp_model.CpModel, variables: Variables, master: Master) -> None:
    """Minimise the sum of the chosen kernels' costs."""
    columns = list(variables.chosen)
    model.minimize(
        cp_model.LinearExpr.weighted_sum(
            [variables.chosen[column] for column in columns], [master.candidates[column].cost for column in columns]
        )
    )
