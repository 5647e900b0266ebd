"""Solve the master problem of a block: relax, fix by reduced cost, branch with CP-SAT, cut cycles, repeat.

Most relaxations are integral, and then CP-SAT has nothing to do. Otherwise a candidate whose reduced cost exceeds the
distance between the best solution known and the bound cannot be part of a better one; what remains is small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ortools.sat.python import cp_model

from optfuse.problem.instance import Instance
from optfuse.solver.columns.atoms import Atoms
from optfuse.solver.columns.candidates import Candidate
from optfuse.solver.control.clock import WALL, Clock
from optfuse.solver.control.native import configured, run
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.master.cpsat_model import Variables, add_cover, add_cuts, add_objective, add_variables, add_variants
from optfuse.solver.master.cycle_repair import split_cycles
from optfuse.solver.master.cycles import find_cuts
from optfuse.solver.master.master import CycleCut, Master, total
from optfuse.solver.master.relaxation import UNIT, LinearMaster, Relaxation

#: The columns of the first CP-SAT model while the gap is wide: those that the relaxation uses, then those of least
#: reduced cost.
CORE_COLUMNS = 800
#: Rough seconds to build the model, for each column.
BUILD_SECONDS = 3e-5


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best acyclic solution known. ``kernels`` is None when only its cost is known."""

    kernels: tuple[Candidate, ...] | None
    cost: int


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search. ``bound`` holds for all solutions made of the master's candidates."""

    incumbent: Incumbent
    bound: int
    cuts: tuple[CycleCut, ...]
    rounds: int


@dataclass(slots=True)
class _State:
    """The state of a search. ``known`` are the candidates by mask, filled at the first repair."""

    problem: Instance
    master: Master
    atoms: Atoms
    incumbent: Incumbent
    bound: int
    options: SolveOptions
    deadline: float
    clock: Clock
    rounds: int = 0
    known: dict[int, Candidate] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return self.bound >= self.incumbent.cost or self.clock.now() >= self.deadline

    def learn(self, cuts: Iterable[CycleCut]) -> None:
        """Add cuts to the model."""
        known = set(self.master.cuts)
        self.master = replace(self.master, cuts=(*self.master.cuts, *(cut for cut in cuts if cut not in known)))

    def consider(self, columns: Sequence[int]) -> bool:
        """Whether a solution is acyclic. It may become the incumbent; with a cycle, it is repaired and cut off."""
        kernels = tuple(self.master.candidates[column] for column in columns)
        cuts = find_cuts(self.atoms, [kernel.mask for kernel in kernels])
        if not cuts:
            self.take(kernels)
            return True
        self.learn(cuts)
        if not self.known:
            self.known.update((candidate.mask, candidate) for candidate in self.master.candidates)
        acyclic = split_cycles(self.problem, self.atoms, kernels, self.known)
        if acyclic is not None:
            self.take(acyclic)
        return False

    def take(self, kernels: tuple[Candidate, ...]) -> None:
        """Make a solution the incumbent, if it is cheaper."""
        if total(kernels) < self.incumbent.cost:
            self.incumbent = Incumbent(kernels, total(kernels))


def search(
    problem: Instance,
    master: Master,
    atoms: Atoms,
    incumbent: Incumbent,
    bound: int,
    options: SolveOptions,
    deadline: float,
    clock: Clock = WALL,
    relax: Callable[[LinearMaster, float], Relaxation] = LinearMaster.relax,
    core: int = CORE_COLUMNS,
) -> Found:
    """The best choice of candidates: at least as good as ``incumbent``, with a bound of at least ``bound``.

    ``bound`` in the result is that of the master problem; it is one of the block only if the candidates are complete.
    ``relax`` solves a relaxation by a deadline; CP-SAT sees ``core`` columns of it first.
    """
    state = _State(problem, master, atoms, incumbent, bound, options, deadline, clock)
    try:
        _search(state, relax, core)
    except KeyboardInterrupt:
        clock.interrupted()
    bound = min(state.bound, state.incumbent.cost)
    return Found(state.incumbent, bound, state.master.cuts, state.rounds)


def _search(state: _State, relax: Callable[[LinearMaster, float], Relaxation], core: int) -> None:
    """Solve the relaxation; where it is no solution, branch with CP-SAT."""
    master, incumbent = state.master, state.incumbent
    masks = {kernel.mask for kernel in incumbent.kernels or ()}
    first = [column for column, candidate in enumerate(master.candidates) if candidate.mask in masks]
    linear = LinearMaster(master, first, state.clock)
    while not state.done:
        state.rounds += 1
        relaxation = relax(linear, state.deadline)
        state.bound = max(state.bound, relaxation.bound)
        chosen = [column for column, value in enumerate(relaxation.values) if value > 0.5]
        if state.done:
            break
        if _is_integral(relaxation.values) and _covers(state.master, chosen):
            before = len(state.master.cuts)
            if not state.consider(chosen):
                linear.add_cuts(state.master.cuts[before:])
                continue
        if not state.done:
            _branch(state, relaxation, core)
        break


def _is_integral(values: Iterable[float]) -> bool:
    return all(value < 1e-6 or value > 1 - 1e-6 for value in values)


def _covers(master: Master, columns: Iterable[int]) -> bool:
    """Whether some columns are an exact cover; False with variants, where this is not tested."""
    covered = 0
    for column in columns:
        mask = master.candidates[column].mask
        if covered & mask:
            return False
        covered |= mask
    return not master.variants and covered.bit_count() == len(master.covers)


def _branch(state: _State, relaxation: Relaxation, size: int) -> None:
    """Solve with CP-SAT the candidates not fixed by reduced cost; the ``size`` most likely ones first.

    The better the incumbent, the fewer candidates are left. Cuts leave the relaxation's proof intact.
    """
    order = sorted(
        range(len(relaxation.slack)), key=lambda column: (relaxation.values[column] <= 0, relaxation.slack[column])
    )
    while not state.done:
        columns = _in_play(state, relaxation, order)
        if len(columns) <= size:
            _settle(state, columns, state.deadline, bounding=True)
            return
        now = state.clock.now()
        _settle(state, _core(state, columns, size), now + (state.deadline - now) / 3, bounding=False)
        size *= 4


def _settle(state: _State, columns: Sequence[int], deadline: float, *, bounding: bool) -> None:
    """Solve some columns and cut cycles until there are none."""
    while not _solve(state, columns, deadline, bounding=bounding):
        state.rounds += 1
        if state.done or state.clock.now() >= deadline:
            return


def _core(state: _State, columns: Sequence[int], size: int) -> list[int]:
    """The first of some columns, with single atoms and the incumbent's kernels, which make the model feasible."""
    masks = {kernel.mask for kernel in state.incumbent.kernels or ()}
    likely = set(columns[:size])
    for column, candidate in enumerate(state.master.candidates):
        if not candidate.mask & candidate.mask - 1 or candidate.mask in masks:
            likely.add(column)
    return sorted(likely)


def _in_play(state: _State, relaxation: Relaxation, order: Sequence[int]) -> list[int]:
    """The candidates, in the given order, whose reduced cost allows a solution better than the incumbent."""
    room = state.incumbent.cost * UNIT - relaxation.level
    return [column for column in order if relaxation.slack[column] < room]


def _solve(state: _State, columns: Sequence[int], deadline: float, *, bounding: bool) -> bool:
    """Solve the model of some columns; False when the solution found has a cycle.

    ``bounding``: no other column can be part of a better solution, so the model's bound is one of the block.
    """
    if state.clock.now() + BUILD_SECONDS * len(columns) > deadline:
        return True
    model = cp_model.CpModel()
    variables = add_variables(model, state.master, columns)
    add_cover(model, variables, state.master)
    add_variants(model, variables, state.master)
    add_cuts(model, variables, state.master)
    add_objective(model, variables, state.master)
    _hint(model, variables, state)
    state.clock.spend(BUILD_SECONDS * len(columns))
    solver = configured(state.options, state.clock, deadline)
    # Presolve took half of the time and finds nothing that the relaxation has not fixed.
    solver.parameters.cp_model_probing_level = 0
    solver.parameters.symmetry_level = 0
    solver.parameters.max_presolve_iterations = 1
    status = run(solver, model, state.clock)
    if status == cp_model.INFEASIBLE:
        if bounding:
            state.bound = max(state.bound, state.incumbent.cost)
        return True
    if bounding and status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN):
        # A solution of other columns costs at least as much as the incumbent.
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
