"""Solve the master problem of a block: relax, fix by reduced cost, branch with CP-SAT, cut circles, repeat.

Most relaxations are integral, and then CP-SAT has nothing to do. Otherwise a candidate whose reduced cost exceeds the
distance between the best solution known and the bound cannot be part of a better one; what remains is small.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ortools.sat.python import cp_model

from optfuse.solve.cpsat.atoms import Atoms
from optfuse.solve.cpsat.candidates import Candidate
from optfuse.solve.cpsat.constraints import add_cover, add_cuts, add_variants
from optfuse.solve.cpsat.cycles import find_cuts
from optfuse.solve.cpsat.master import Cut, Master, total
from optfuse.solve.cpsat.objective import add_objective
from optfuse.solve.cpsat.relaxation import UNIT, Relaxation, relax
from optfuse.solve.cpsat.variables import Variables, add_variables
from optfuse.solve.options import SolveOptions

#: Columns of least reduced cost that CP-SAT sees first, while the best solution known is still far from the bound.
CORE_COLUMNS = 1500


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best acyclic solution known. ``kernels`` is None when it came from outside and only its cost is known."""

    kernels: tuple[Candidate, ...] | None
    cost: int


@dataclass(frozen=True, slots=True)
class Found:
    """What a search ends with: ``bound`` holds for all solutions made of the master's candidates.

    ``prices`` are the last relaxation's dual prices of the covers, in 1/``UNIT`` picoseconds.
    """

    incumbent: Incumbent
    bound: int
    cuts: tuple[Cut, ...]
    rounds: int
    prices: tuple[int, ...]


@dataclass(slots=True)
class _State:
    """What changes while a master problem is solved."""

    master: Master
    atoms: Atoms
    incumbent: Incumbent
    bound: int
    options: SolveOptions
    deadline: float
    rounds: int = 0
    prices: tuple[int, ...] = ()

    @property
    def done(self) -> bool:
        return self.bound >= self.incumbent.cost or time.monotonic() >= self.deadline

    def consider(self, columns: Sequence[int]) -> bool:
        """Take a solution in, if it is acyclic; otherwise learn cuts from it and return False."""
        kernels = tuple(self.master.candidates[column] for column in columns)
        cuts = find_cuts(self.atoms, [kernel.mask for kernel in kernels])
        if cuts:
            known = set(self.master.cuts)
            self.master = replace(self.master, cuts=(*self.master.cuts, *(cut for cut in cuts if cut not in known)))
            return False
        if total(kernels) < self.incumbent.cost:
            self.incumbent = Incumbent(kernels, total(kernels))
        return True


def search(
    master: Master, atoms: Atoms, incumbent: Incumbent, bound: int, options: SolveOptions, deadline: float
) -> Found:
    """The best choice of candidates: at least as good as ``incumbent``, with a bound of at least ``bound``.

    ``bound`` in the result is that of the master problem; it is one of the block only if the candidates are complete.
    """
    state = _State(master, atoms, incumbent, bound, options, deadline)
    while not state.done:
        state.rounds += 1
        if not _round(state):
            continue
        break
    bound = min(state.bound, state.incumbent.cost)
    return Found(state.incumbent, bound, state.master.cuts, state.rounds, state.prices)


def _round(state: _State) -> bool:
    """One relaxation and, if need be, one branching; False when cuts were added and all must be solved again."""
    known = state.incumbent.kernels or ()
    masks = {kernel.mask for kernel in known}
    first = [column for column, candidate in enumerate(state.master.candidates) if candidate.mask in masks]
    relaxation = relax(state.master, first, state.deadline)
    state.bound = max(state.bound, relaxation.bound)
    state.prices = relaxation.prices
    if state.done:
        return True
    chosen = [column for column, value in enumerate(relaxation.values) if value > 0.5]
    if _is_integral(relaxation.values) and _covers(state.master, chosen) and not state.consider(chosen):
        return False
    return state.done or _branch(state, relaxation)


def _is_integral(values: Iterable[float]) -> bool:
    return all(value < 1e-6 or value > 1 - 1e-6 for value in values)


def _covers(master: Master, columns: Iterable[int]) -> bool:
    """Whether a choice covers everything exactly; only without variants, where that is plain to see."""
    covered = 0
    for column in columns:
        mask = master.candidates[column].mask
        if covered & mask:
            return False
        covered |= mask
    return not master.variants and covered.bit_count() == len(master.covers)


def _branch(state: _State, relaxation: Relaxation) -> bool:
    """CP-SAT on the candidates that could be part of a better solution; first on the most likely of them."""
    order = sorted(range(len(relaxation.slack)), key=relaxation.slack.__getitem__)
    columns = _in_play(state, relaxation, order)
    if len(columns) > CORE_COLUMNS:
        core = columns[:CORE_COLUMNS]
        halfway = min(state.deadline, time.monotonic() + max(1.0, (state.deadline - time.monotonic()) / 4))
        if not _solve(state, core, halfway, bounding=False):
            return False
        columns = _in_play(state, relaxation, order)
        if state.done:
            return True
    return _solve(state, columns, state.deadline, bounding=True)


def _in_play(state: _State, relaxation: Relaxation, order: Sequence[int]) -> list[int]:
    """Candidates, by rising reduced cost, with which a solution could still beat the best one known."""
    room = state.incumbent.cost * UNIT - relaxation.level
    return [column for column in order if relaxation.slack[column] < room]


def _solve(state: _State, columns: Sequence[int], deadline: float, *, bounding: bool) -> bool:
    """Find a better solution among some columns; with ``bounding``, those left out cannot be part of one.

    Returns False when the solution found closes a circle.
    """
    model = cp_model.CpModel()
    variables = add_variables(model, state.master, columns)
    add_cover(model, variables, state.master)
    add_variants(model, variables, state.master)
    add_cuts(model, variables, state.master)
    add_objective(model, variables, state.master)
    _hint(model, variables, state)
    solver = configured(state.options, deadline)
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        if bounding:
            state.bound = max(state.bound, state.incumbent.cost)
        return True
    if bounding and status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN):
        # A solution of other columns costs at least as much as the best one known.
        state.bound = max(state.bound, min(state.incumbent.cost, _whole_bound(solver.best_objective_bound)))
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return state.consider([column for column in columns if solver.boolean_value(variables.chosen[column])])
    return True


def _whole_bound(value: float) -> int:
    """CP-SAT's bound on an objective of integers, as an integer. Doubles below 2**53 are exact."""
    return int(-(-value // 1)) if abs(value) < 1 << 53 else 0


def _hint(model: cp_model.CpModel, variables: Variables, state: _State) -> None:
    chosen = {kernel.mask for kernel in state.incumbent.kernels or ()}
    for column, variable in variables.chosen.items() if chosen else ():
        model.add_hint(variable, state.master.candidates[column].mask in chosen)


def configured(options: SolveOptions, deadline: float) -> cp_model.CpSolver:
    """A CP-SAT solver that obeys the options and stops at ``deadline`` (monotonic)."""
    solver = cp_model.CpSolver()
    left = max(0.01, deadline - time.monotonic())
    solver.parameters.max_time_in_seconds = left
    solver.parameters.num_workers = options.workers
    solver.parameters.random_seed = options.seed
    if options.deterministic:
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = options.time_limit
    return solver
