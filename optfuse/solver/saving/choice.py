"""Which values of a training step are saved for the backward graph, and which are computed again there.

A constraint model over values, not kernels: its times are those of ops alone, so it proposes, and solving the two
graphs that follow from a proposal prices it. The backward graph is cut into levels: the level of a loop or library call
is the number of library calls on a longest path to it. What loops of one level read or compute, they share; what is
needed at several levels is read, or computed, at each. Per value v that depends on no gradient, and per level l at
which it may be of use:

    variables    save(v), written(v), there(v, l), again(v, l), read(v, l) in {0, 1}
    memory       stored(v) = save(v) or written(v); a view is stored where what it is a view of is
    called       stored(v) = 1 for what a library call of the backward half reads
    looped       there(v, l) = 1 for what a loop of the backward half reads at level l
    there        there(v, l) implies again(v, l), or stored(v) and read(v, l); for a view, there(u, l) of its source u
    saved        save(v) implies not again(v, l): the backward graph has one node for v, computed there or given
    again        again(v, l) of a loop implies there(u, l) for each u that v is computed from
                 again(v) of a library call implies stored(u) for these
    written      written(v) implies again(v, l) at the first level l at which a library call needs it; without, it is 0
    bytes        sum of bytes(v) * save(v) <= cap
    objective    least sum of save_ps(v) * save(v) + write_ps(v) * written(v)
                 + read_ps(v) * sum over l of read(v, l)
                 + again_ps(v) * sum over l of again(v, l), and of those the fewest bytes

What a library call computes is in memory, so that its written(v) costs nothing. With the times of library calls alone
the model's bound is one on what any choice within the cap adds to the step: every choice has these calls in its
backward graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ortools.sat.python import cp_model

from optfuse.solver.control.clock import Clock
from optfuse.solver.control.native import configured, run
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.saving.linear_relaxation import relaxed

#: A picosecond in the objective: bytes break ties below it.
SCALE = 1024
#: What the relaxation says is whole within this.
WHOLE = 1e-6
#: The relaxation may take so many times as long as the search that starts from it: without it there is hardly a choice.
PATIENCE = 10


@dataclass(frozen=True, slots=True)
class ForwardValue:
    """A value of a training step that depends on no gradient.

    Attributes:
        inputs: The values (by position) that it is computed from; what the graph is given is always there.
        bytes: What saving it keeps in memory; 0 for what stays there in any case; None if it cannot be saved: a view, a
            tuple.
        save_ps: Picoseconds that saving it adds to the forward graph.
        again_ps: Picoseconds of computing it again from its inputs; None if it must not be (a random draw, a
            collective).
        write_ps, read_ps: Picoseconds of writing it to memory in the backward graph, and of reading it from there.
        library: Whether a library call computes it, which takes its time in every schedule.
        view: Whether it is a view of its one input, or of what the graph is given.
        called: The least level of the library calls of the backward half that read it; None if none does.
        looped: The levels of the loops of the backward half that read it.
        last_called: As ``called``, the greatest level.
    """

    name: str
    inputs: tuple[int, ...]
    bytes: int | None
    save_ps: int = 0
    again_ps: int | None = 0
    write_ps: int = 0
    read_ps: int = 0
    library: bool = False
    view: bool = False
    called: int | None = None
    looped: frozenset[int] = frozenset()
    last_called: int | None = None


@dataclass(frozen=True, slots=True)
class Saving:
    """A choice of what to save: values saved and values recomputed, by position, its cost, and a bound on every cost.

    ``bytes`` are those saved. ``proven``: no choice is cheaper under the model.
    """

    saved: frozenset[int]
    again: frozenset[int]
    cost_ps: int
    bound_ps: int
    bytes: int
    proven: bool


def choose_saving(
    values: Sequence[ForwardValue],
    cap: int | None,
    options: SolveOptions,
    clock: Clock,
    deadline: float,
    gap_ps: int = 0,
) -> Saving | None:
    """The cheapest choice that keeps at most ``cap`` bytes (None: any number); None if none was found.

    The linear relaxation decides all values but for a small count, and its bound is close: the rest is searched first
    with what it decides fixed. Only what that leaves of the gap is searched with nothing fixed.

    ``deadline``: the clock's time by which the search would end with the best choice found if the relaxation took no
    time; that may take ``PATIENCE`` times as long. It ends before that where the choice is within ``gap_ps`` of the
    bound.
    """
    model = _Model.of(values, cap)
    seconds = deadline - clock.now()
    relaxation = relaxed(model.model, clock, clock.now() + PATIENCE * seconds)
    deadline = clock.now() + seconds
    start, bound = None, 0
    if relaxation is not None:
        bound = max(0, relaxation.bound // SCALE)
        decided = {
            k: round(share) for k, one in enumerate(model.saves) if _whole(share := relaxation.values[one.index])
        }
        start = model.solve(decided, options, clock, deadline, fixed=True)
    if start is not None and start.cost_ps - bound <= gap_ps:
        return replace(start, bound_ps=min(bound, start.cost_ps), proven=bound >= start.cost_ps)
    hints = {} if start is None else {k: k in start.saved for k in range(len(values))}
    found = model.solve(hints, options, clock, deadline, gap_ps=gap_ps)
    best = min((one for one in (start, found) if one is not None), key=lambda one: one.cost_ps, default=None)
    if best is None:
        return None
    bound = max(bound, 0 if found is None else found.bound_ps)
    return replace(best, bound_ps=min(bound, best.cost_ps), proven=bound >= best.cost_ps)


def _whole(share: float) -> bool:
    return abs(share - round(share)) < WHOLE


@dataclass(frozen=True, slots=True)
class _Model:
    """The constraint model: what takes time with its picoseconds, which values are saved, and their sizes."""

    model: cp_model.CpModel
    variables: Sequence[_Variables]
    times: Sequence[tuple[cp_model.IntVar, int]]
    sizes: Sequence[int]

    @classmethod
    def of(cls, values: Sequence[ForwardValue], cap: int | None) -> _Model:
        model = cp_model.CpModel()
        variables = _variables(model, values)
        saves = [one.save for one in variables]
        sizes = [value.bytes or 0 for value in values]
        if cap is not None:
            model.add(cp_model.LinearExpr.weighted_sum(saves, sizes) <= cap)
        # of choices that cost the same one that keeps fewer bytes: shares that add up to less than a picosecond
        total = max(1, sum(sizes))
        shares = [size * (SCALE - 1) // total for size in sizes]
        times = [pair for value, one in zip(values, variables, strict=True) for pair in one.times(value)]
        model.minimize(
            cp_model.LinearExpr.weighted_sum(
                [*saves, *(v for v, _ in times)], [*shares, *(SCALE * ps for _, ps in times)]
            )
        )
        return cls(model, variables, times, sizes)

    @property
    def saves(self) -> list[cp_model.IntVar]:
        return [one.save for one in self.variables]

    def solve(
        self,
        hints: Mapping[int, int],
        options: SolveOptions,
        clock: Clock,
        deadline: float,
        *,
        fixed: bool = False,
        gap_ps: int = 0,
    ) -> Saving | None:
        """The best choice found; ``hints``: by value whether it is saved. Where these are fixed the bound is theirs."""
        self.model.clear_hints()
        for k, saved in hints.items():
            self.model.add_hint(self.variables[k].save, bool(saved))
        solver = configured(options, clock, deadline)
        solver.parameters.absolute_gap_limit = float(SCALE * gap_ps)
        solver.parameters.fix_variables_to_their_hinted_value = fixed
        status = run(solver, self.model, clock)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        saved = frozenset(k for k, one in enumerate(self.variables) if solver.value(one.save))
        again = frozenset(
            k for k, one in enumerate(self.variables) if any(solver.value(variable) for variable in one.again.values())
        )
        cost = sum(ps for variable, ps in self.times if solver.value(variable))
        bound = max(0, math.floor(solver.best_objective_bound) // SCALE)
        return Saving(saved, again, cost, bound, sum(self.sizes[k] for k in saved), status == cp_model.OPTIMAL)


def least_cost(values: Sequence[ForwardValue], cap: int, clock: Clock, deadline: float) -> int:
    """A bound on the cost of every choice that keeps at most ``cap`` bytes, without a search for one.

    ``deadline`` as for ``choose_saving``: the relaxation alone.
    """
    model = _Model.of(values, cap).model
    relaxation = relaxed(model, clock, clock.now() + PATIENCE * (deadline - clock.now()))
    return 0 if relaxation is None else max(0, relaxation.bound // SCALE)


def least_bytes(values: Sequence[ForwardValue], options: SolveOptions, clock: Clock, deadline: float) -> int | None:
    """The fewest bytes that any choice keeps, or a bound below them if the time runs out; None if none is possible."""
    by_bytes = [replace(_free(value, 0), save_ps=value.bytes or 0) for value in values]
    found = choose_saving(by_bytes, None, options, clock, deadline)
    return None if found is None else found.bound_ps


def of_library_calls(values: Sequence[ForwardValue]) -> tuple[ForwardValue, ...]:
    """The problem whose bound holds for every schedule: what takes time is library calls that run again."""
    return tuple(_free(value, value.again_ps or 0 if value.library else 0) for value in values)


def of_writes(values: Sequence[ForwardValue]) -> tuple[ForwardValue, ...]:
    """The same with the values that library calls need and loops compute again, which are written then."""
    calls = of_library_calls(values)
    return tuple(replace(call, write_ps=value.write_ps) for call, value in zip(calls, values, strict=True))


def fewest_recomputed(values: Sequence[ForwardValue]) -> tuple[ForwardValue, ...]:
    """The problem whose best choice recomputes the fewest values."""
    return tuple(_free(value, 1) for value in values)


def _free(value: ForwardValue, again_ps: int) -> ForwardValue:
    """The value with reads and writes that take no time, so that all levels of it are equal."""
    return replace(
        value,
        save_ps=0,
        again_ps=None if value.again_ps is None else again_ps,
        write_ps=0,
        read_ps=0,
        called=None if value.called is None else 0,
        last_called=None if value.called is None else 0,
        looped=frozenset({0}) if value.looped else frozenset(),
    )


@dataclass(frozen=True, slots=True)
class _Uses:
    """Where a value can be used.

    ``levels``: those at which loops may hold it. ``first``: the first at which it must be in memory, if it is computed
    again and a library call needs it.
    """

    levels: frozenset[int]
    first: int | None


def uses(values: Sequence[ForwardValue]) -> list[_Uses]:
    """The uses of each value: those of the backward half, and those of what is computed from it."""
    levels = [set(value.looped) for value in values]
    first: list[int | None] = [value.called for value in values]

    def need(u: int, level: int | None) -> None:
        known = [one for one in (first[u], level) if one is not None]
        first[u] = min(known, default=None)

    for k, value in reversed(list(enumerate(values))):
        soonest = first[k]
        if value.library:
            soonest = min((one for one in (*levels[k], soonest) if one is not None), default=None)
        elif soonest is not None and not value.view:
            levels[k].add(soonest)
        for u in value.inputs:
            if value.library or value.view:
                need(u, soonest)
            if not value.library:
                levels[u] |= levels[k]
    return [_Uses(frozenset(some), one) for some, one in zip(levels, first, strict=True)]


@dataclass(frozen=True, slots=True)
class _Variables:
    """The variables of one value; ``there``, ``again`` and ``read`` by level, a library call's only ``again`` by -1."""

    save: cp_model.IntVar
    written: cp_model.IntVar
    there: dict[int, cp_model.IntVar]
    again: dict[int, cp_model.IntVar]
    read: dict[int, cp_model.IntVar]

    @classmethod
    def of(cls, model: cp_model.CpModel, value: ForwardValue, used: _Uses) -> _Variables:
        """New variables of a value; a view has only ``there``."""

        def some(name: str, levels: Iterable[int]) -> dict[int, cp_model.IntVar]:
            return {level: model.new_bool_var(f"{name} {value.name} {level}") for level in sorted(levels)}

        read = [] if value.view else used.levels
        again = [] if value.again_ps is None else [-1] if value.library else read
        save, written = (model.new_bool_var(f"{name} {value.name}") for name in ("save", "written"))
        return cls(save, written, some("there", used.levels), some("again", again), some("read", read))

    def times(self, value: ForwardValue) -> list[tuple[cp_model.IntVar, int]]:
        """What takes time, with its picoseconds."""
        written = [] if value.library else [(self.written, value.write_ps)]
        moved = [(variable, value.read_ps) for variable in self.read.values()]
        again = [(variable, value.again_ps or 0) for variable in self.again.values()]
        return [(self.save, value.save_ps), *written, *moved, *again]


def _variables(model: cp_model.CpModel, values: Sequence[ForwardValue]) -> list[_Variables]:
    """The variables of each value, with every constraint but the cap."""
    stored: list[list[cp_model.IntVar] | None] = []  # any of these; None: in memory in any case
    made: list[_Variables] = []
    for value, used in zip(values, uses(values), strict=True):
        one = _Variables.of(model, value, used)
        made.append(one)
        if value.bytes is None:
            model.add(one.save == 0)
        if value.view:
            stored.append(stored[value.inputs[0]] if value.inputs else None)
        else:
            stored.append([one.save, one.written])
            for level, there in one.there.items():
                computed = [one.again[level]] if level in one.again else []
                model.add_bool_or(~there, one.read[level], *computed)
                model.add_bool_or(~one.read[level], one.save, one.written)
            for again in one.again.values():
                model.add_implication(one.save, ~again)
        writing = -1 if value.library else used.first
        model.add_bool_or(~one.written, *(again for level, again in one.again.items() if level == writing))
        for level, computed in (one.there if value.view else one.again).items():
            for u in value.inputs:
                if value.library:
                    _add_stored(model, stored[u], computed)
                elif level in made[u].there:
                    model.add_implication(computed, made[u].there[level])
                else:
                    model.add(computed == 0)
        if value.called is not None:
            _add_stored(model, stored[-1])
        for level in value.looped:
            model.add(one.there[level] == 1)
    return made


def _add_stored(model: cp_model.CpModel, stored: list[cp_model.IntVar] | None, *wherever: cp_model.IntVar) -> None:
    """A value is in memory where all of ``wherever`` are 1."""
    if stored is not None:
        model.add_bool_or(*stored, *(~variable for variable in wherever))
