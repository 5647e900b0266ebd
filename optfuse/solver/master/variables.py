"""Variables: one Boolean a candidate kernel, one an alternative of a variant."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ortools.sat.python import cp_model

from optfuse.solver.master.master import Master


@dataclass(frozen=True, slots=True)
class Variables:
    """``chosen[k]``: candidate k is a kernel of the solution (only candidates still in play have one).

    ``taken[j]``: alternative j of its variant runs.
    """

    chosen: dict[int, cp_model.IntVar]
    taken: tuple[cp_model.IntVar, ...]


def add_variables(model: cp_model.CpModel, master: Master, columns: Iterable[int]) -> Variables:
    """Make the variables of some of the candidates and of all alternatives."""
    return Variables(
        {column: model.new_bool_var(f"kernel {column}") for column in columns},
        tuple(model.new_bool_var(f"alternative {number}") for number in range(master.alternatives)),
    )
