"""The linear relaxation of a constraint model over Booleans, and the bound that it proves.

GLOP works in floating point, so what it says is only a hint. The proof is in integers: its dual prices are rounded, and
any prices that are not negative prove a bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ortools.linear_solver import pywraplp
from ortools.sat.python import cp_model

from optfuse.errors import DefectError
from optfuse.solver.control.clock import Clock
from optfuse.solver.control.native import interruptibly

#: Dual prices are rounded to multiples of 1/``UNIT``.
UNIT = 1 << 24
#: Limits of a sum beyond this are none.
UNLIMITED = 1 << 62
#: Rough seconds of a simplex iteration for each variable.
ITERATION_SECONDS = 2e-8


@dataclass(frozen=True, slots=True)
class Relaxed:
    """An optimum of the relaxation: ``values`` by variable of the model, and a proven bound on its objective."""

    values: tuple[float, ...]
    bound: int


@dataclass(frozen=True, slots=True)
class _Row:
    """The sum of coefficients times variables is at least ``least``."""

    coefficients: Mapping[int, int]
    least: int


def relaxed(model: cp_model.CpModel, clock: Clock, deadline: float) -> Relaxed | None:
    """The relaxation of a model of clauses, implications and sums that is to be minimized; None: not solved in time.

    Raises:
        DefectError: When the model has another kind of constraint.
    """
    left = int(1000 * (deadline - clock.now()))
    if left <= 0:
        return None
    count = len(model.proto.variables)
    costs = [0] * count
    for variable, cost in zip(model.proto.objective.vars, model.proto.objective.coeffs, strict=True):
        costs[variable] += cost
    rows = list(_rows(model))
    unit = _largest(costs)
    solver: pywraplp.Solver = pywraplp.Solver.CreateSolver("GLOP")
    variables = [solver.NumVar(0, 1, "") for _ in range(count)]
    solver.Objective().SetMinimization()
    for variable, cost in zip(variables, costs, strict=True):
        solver.Objective().SetCoefficient(variable, cost / unit)
    units = [_largest(row.coefficients.values()) for row in rows]
    stated = []
    for row, own in zip(rows, units, strict=True):
        stated.append(solver.Constraint(row.least / own, solver.infinity()))
        for k, coefficient in row.coefficients.items():
            stated[-1].SetCoefficient(variables[k], coefficient / own)
    if not clock.deterministic:
        solver.SetTimeLimit(left)
    status = interruptibly(solver.Solve, solver.InterruptSolve, clock)
    clock.spend(ITERATION_SECONDS * solver.iterations() * count)
    if status != pywraplp.Solver.OPTIMAL:
        return None
    prices = [round(UNIT * unit * row.dual_value() / own) for row, own in zip(stated, units, strict=True)]
    return Relaxed(tuple(one.solution_value() for one in variables), _proven(costs, rows, prices))


def _largest(coefficients: Iterable[int]) -> int:
    return max((abs(one) for one in coefficients if one), default=1)


def _proven(costs: Sequence[int], rows: Sequence[_Row], prices: Iterable[int]) -> int:
    """The bound that dual prices, in 1/``UNIT``, prove: any prices that are not negative prove one."""
    left = [UNIT * cost for cost in costs]
    level = 0
    for row, price in zip(rows, prices, strict=True):
        if price > 0:
            level += price * row.least
            for k, coefficient in row.coefficients.items():
                left[k] -= price * coefficient
    return -(-(level + sum(min(0, one) for one in left)) // UNIT)


def _rows(model: cp_model.CpModel) -> Iterator[_Row]:
    for constraint in model.proto.constraints:
        unless = [-1 - literal for literal in constraint.enforcement_literal]
        if constraint.has_bool_or():
            yield _clause([*constraint.bool_or.literals, *unless])
        elif constraint.has_bool_and():
            for literal in constraint.bool_and.literals:
                yield _clause([literal, *unless])
        elif constraint.has_linear() and not unless and len(constraint.linear.domain) == 2:
            least, most = constraint.linear.domain
            terms: Counter[int] = Counter()
            for variable, coefficient in zip(constraint.linear.vars, constraint.linear.coeffs, strict=True):
                terms[variable] += coefficient
            if least > -UNLIMITED:
                yield _Row(terms, least)
            if most < UNLIMITED:
                beyond = most + 1 if min(terms.values(), default=0) >= 0 <= most else UNLIMITED  # no more is any worse
                yield _Row({k: -min(coefficient, beyond) for k, coefficient in terms.items()}, -most)
        else:
            raise DefectError(
                f"the relaxation has no rows for the constraint {' '.join(str(constraint).split())}: state it as "
                "clauses, or as a sum in one interval without conditions; this is a defect of optfuse, please report it"
            )


def _clause(literals: Iterable[int]) -> _Row:
    """At least one literal holds; -1 - k is the negation of variable k."""
    terms: Counter[int] = Counter()
    negated = 0
    for literal in set(literals):
        terms[max(literal, -1 - literal)] += 1 if literal >= 0 else -1
        negated += literal < 0
    return _Row(terms, 1 - negated)
