"""The master problem in CP-SAT: one Boolean a candidate and an alternative, the constraints, and the objective."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ortools.sat.python import cp_model

from optfuse.problem.op_masks import bits
from optfuse.solver.master.master import Master


@dataclass(frozen=True, slots=True)
class Variables:
    """``chosen[k]``: candidate k is a kernel of the solution (only candidates in the model have one).

    ``taken[j]``: alternative j of its variant runs.
    """

    chosen: dict[int, cp_model.IntVar]
    taken: tuple[cp_model.IntVar, ...]


def add_variables(model: cp_model.CpModel, master: Master, columns: Iterable[int]) -> Variables:
    """The variables of some candidates (``columns``) and of all alternatives."""
    return Variables(
        {column: model.new_bool_var(f"kernel {column}") for column in columns},
        tuple(model.new_bool_var(f"alternative {number}") for number in range(master.alternatives)),
    )


def add_cover(model: cp_model.CpModel, variables: Variables, master: Master) -> None:
    """Each atom lies in exactly one chosen kernel; an atom of alternatives does so when one of them is taken, only."""
    holding: dict[int, list[cp_model.IntVar]] = {cover.atom: [] for cover in master.covers}
    for column, variable in variables.chosen.items():
        for atom in bits(master.candidates[column].mask):
            holding[atom].append(variable)
    for cover in master.covers:
        if cover.alternatives is None:
            model.add_exactly_one(holding[cover.atom])
        else:
            model.add(sum(holding[cover.atom]) == sum(variables.taken[number] for number in cover.alternatives))


def add_variants(model: cp_model.CpModel, variables: Variables, master: Master) -> None:
    """Exactly one alternative of each variant runs."""
    for numbers in master.variants:
        model.add_exactly_one(variables.taken[number] for number in numbers)


def add_cuts(model: cp_model.CpModel, variables: Variables, master: Master) -> None:
    """Not all the anchors of a cycle are true at once."""
    holding: dict[int, list[int]] = {}
    for column in variables.chosen if master.cuts else ():
        for atom in bits(master.candidates[column].mask):
            holding.setdefault(atom, []).append(column)
    for cut in master.cuts:
        touched = dict.fromkeys(column for atom in bits(cut.touches) for column in holding.get(atom, ()))
        terms = [
            weight * variables.chosen[column]
            for column in touched
            if (weight := cut.weight(master.candidates[column].mask))
        ]
        model.add(sum(terms) <= cut.limit)


def add_objective(model: cp_model.CpModel, variables: Variables, master: Master) -> None:
    """Minimise the sum of the chosen kernels' costs."""
    columns = list(variables.chosen)
    model.minimize(
        cp_model.LinearExpr.weighted_sum(
            [variables.chosen[column] for column in columns], [master.candidates[column].cost for column in columns]
        )
    )
