"""The joint model: kernels, their order and peak memory together, with recomputation where allowed.

- variables (``joint_model``): one Boolean a column (``solver.joint.columns``); a position in time for each op that is
  computed once and for each value of a recomputable op; begin and end of each storage;
- families (``joint_families``): every op once, a value written once if a column takes it from memory, kernels in one
  place, values before their use, lifetimes that cover all uses, and no more bytes live at any time than the cap;
- objective: the cost of the chosen columns, or the peak.

Kernels may share a position: their buffers are then live together, which is never less than one after the other. So
positions need not differ, and the order read off the model has at most the peak that the model counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from optfuse.solver.control.clock import WALL, Clock
from optfuse.solver.control.native import configured, run
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.joint.columns import Column
from optfuse.solver.joint.joint_families import FAMILIES, Family
from optfuse.solver.joint.joint_model import Anchor, JointModel, joint_model
from optfuse.solver.joint.scope import Scope


@dataclass(frozen=True, slots=True)
class JointResult:
    """``columns`` in order, or None when no schedule was found. ``bound`` is a bound on the model's objective.

    ``infeasible``: it was proven that these columns allow no schedule within the cap.
    """

    columns: tuple[Column, ...] | None
    bound: int
    proven: bool
    infeasible: bool = False


def solve_joint(
    scope: Scope,
    columns: Sequence[Column],
    options: SolveOptions,
    deadline: float,
    clock: Clock = WALL,
    *,
    cap: int | None = None,
    least_peak: bool = False,
    start: Sequence[Column] | None = None,
    at_most: int | None = None,
    families: Sequence[Family] = FAMILIES,
) -> JointResult:
    """The optimal choice and order of columns, as far as it is found and proven by the deadline.

    Args:
        deadline: A time of ``clock``.
        cap: Bytes that may be live at once; None: any number.
        least_peak: Minimise the peak instead of the cost.
        start: A schedule to start from, made of the columns; it need not keep the cap.
        at_most: What the objective may be at most.
        families: The constraint families; without all of them the answer may be no schedule.
    """
    model = joint_model(scope, columns, cap, least_peak=least_peak)
    for add in families:
        add(model)
    objective = model.objective()
    if at_most is not None:
        model.cp.add(objective <= ((at_most - scope.base) // model.unit if least_peak else at_most))
    model.cp.minimize(objective)
    if start is not None:
        _hint(model, start)
    solver = configured(options, clock, deadline)
    status = run(solver, model.cp, clock)
    if status == cp_model.INFEASIBLE:
        return JointResult(None, 0, proven=False, infeasible=True)
    bound = max(0, math.ceil(solver.best_objective_bound - 1e-6)) if solver.best_objective_bound < 1 << 53 else 0
    bound = scope.base + model.unit * bound if least_peak else bound
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return JointResult(None, bound, proven=False)
    return JointResult(_in_order(model, solver), bound, status == cp_model.OPTIMAL)


def _hint(model: JointModel, start: Sequence[Column]) -> None:
    """Hint a whole schedule: columns, positions and lifetimes. CP-SAT takes one hint a variable."""
    place = {_key(column): position for position, column in enumerate(start)}
    hinted: set[Anchor] = set()
    for column, variable, anchors in zip(model.columns, model.chosen, model.anchors, strict=True):
        position = place.get(_key(column))
        model.cp.add_hint(variable, position is not None)
        if position is not None:
            for anchor in anchors:
                if anchor not in hinted:
                    hinted.add(anchor)
                    model.cp.add_hint(model.at[anchor], min(position, model.horizon - 1))
    _hint_lives(model, start)


def _key(column: Column) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """The key of a column: of two with the same key only the cheaper one is kept."""
    return column.mask, column.writes, column.loads


def _hint_lives(model: JointModel, start: Sequence[Column]) -> None:
    scope = model.scope
    users: dict[int, list[int]] = {}
    for position, column in enumerate(start):
        for buffer in (*column.loads, *column.writes):
            users.setdefault(scope.root[buffer], []).append(min(position, model.horizon - 1))
    facts: Mapping[int, tuple[bool, bool]] = {s.buffer: (s.from_start, s.to_end) for s in scope.storages}
    for buffer, life in model.lives.items():
        if buffer in users:
            early, late = facts[buffer]
            model.cp.add_hint(life.first, 0 if early else min(users[buffer]))
            model.cp.add_hint(life.last, model.horizon if late else max(users[buffer]) + 1)


def _in_order(model: JointModel, solver: cp_model.CpSolver) -> tuple[Column, ...]:
    """The chosen columns by position. Columns at the same position do not depend on each other."""
    found = [
        (solver.value(model.at[anchors[0]]), column.mask & -column.mask, k)
        for k, (column, anchors) in enumerate(zip(model.columns, model.anchors, strict=True))
        if solver.boolean_value(model.chosen[k])
    ]
    return tuple(model.columns[k] for _, _, k in sorted(found))
