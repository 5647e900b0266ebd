"""Which values of a training step are saved for the backward graph, and which are computed again there.

A constraint model over values, not kernels: its times are those of ops alone, so it proposes, and solving the two
graphs that follow from a proposal prices it. In the backward graph a value is computed again in kernels of two kinds:
early ones, which write it for a library call, and late ones, which compute with it themselves, after the calls. What
both kinds read is read twice. Per value v that depends on no gradient, and per kind k:

    variables    save(v), written(v), there(v, k), again(v, k), read(v, k) in {0, 1}
    memory       stored(v) = save(v) or written(v); a view is stored where what it is a view of is
    called       stored(v) = 1 for what a library call of the backward half reads
    looped       there(v, late) = 1 for what a loop of the backward half reads
    there        there(v, k) implies again(v, k), or stored(v) and read(v, k); for a view, there(u, k) of its source u
    saved        save(v) implies not again(v, k): the backward graph has one node for v, computed there or given
    again        again(v, k) of a loop implies there(u, k) for each u that v is computed from
                 again(v, k) of a library call implies stored(u) for these
    written      written(v) implies again(v, early); it is 0 for a loop's value that no library call reads
    bytes        sum of bytes(v) * save(v) <= cap
    objective    least sum of save_ps(v) * save(v) + move_ps(v) * (written(v) + sum over k of read(v, k))
                 + again_ps(v) * sum over k of again(v, k), and of those the fewest bytes

What a library call computes is in memory, so that its written(v) costs nothing. With the times of library calls alone
the model's bound is one on what any choice within the cap adds to the step: every choice has these calls in its
backward graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ortools.sat.python import cp_model

from optfuse.solver.control.clock import Clock
from optfuse.solver.control.native import configured, run
from optfuse.solver.control.options import SolveOptions

#: Prices per byte that are tried at most.
MOST_PRICES = 24
#: A picosecond in the objective: prices per byte are parts of it, and bytes break ties below it.
SCALE = 1024
EARLY, LATE = KINDS = range(2)


@dataclass(frozen=True, slots=True)
class ForwardValue:
    """A value of a training step that depends on no gradient.

    Attributes
    ----------
    inputs
        The values (by position) that it is computed from; what the graph is given is always there.
    bytes
        What saving it keeps in memory; 0 for what stays there in any case; None if it cannot be saved: a view, a tuple.
    save_ps
        Picoseconds that saving it adds to the forward graph.
    again_ps
        Picoseconds of computing it again from its inputs; None if it must not be (a random draw, a collective).
    move_ps
        Picoseconds of writing it to memory in the backward graph, and of reading it from there.
    library
        Whether a library call computes it, which takes its time in every schedule.
    view
        Whether it is a view of its one input, or of what the graph is given.
    called, looped
        Whether a library call of the backward half reads it, and whether a loop does.
    """

    name: str
    inputs: tuple[int, ...]
    bytes: int | None
    save_ps: int = 0
    again_ps: int | None = 0
    move_ps: int = 0
    library: bool = False
    view: bool = False
    called: bool = False
    looped: bool = False


@dataclass(frozen=True, slots=True)
class Saving:
    """A choice: values saved and values computed again, by position, with what it costs and a bound on every choice's.

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
    gap: float = 0.0,
) -> Saving | None:
    """The cheapest choice that keeps at most ``cap`` bytes (None: any number); None if none was found.

    Under a cap the layers of a model compete for the same bytes, and choices that differ in which layer gets them cost
    the same, which a search does not tell apart soon. A price per byte decides for all of them at once: its best
    choices without the cap are a start, and their costs less the price of the cap bound every choice within it.

    ``deadline``: the clock's time by which the search ends with the best choice found. It ends before that where the
    choice is within ``gap`` of the bound.
    """
    free = _solve(values, None, 0, options, clock, deadline)
    if free is None or cap is None or free.bytes <= cap:
        return free
    start, bound = _by_price(values, cap, options, clock, deadline)
    if start is not None and start.cost_ps - bound <= gap * start.cost_ps:
        return replace(start, bound_ps=min(bound, start.cost_ps), proven=bound >= start.cost_ps)
    found = _solve(values, cap, 0, options, clock, deadline, start, gap)
    best = min((one for one in (start, found) if one is not None), key=lambda one: one.cost_ps, default=None)
    if best is None:
        return None
    bound = max(bound, 0 if found is None else found.bound_ps)
    return replace(best, bound_ps=min(bound, best.cost_ps), proven=bound >= best.cost_ps)


def _by_price(
    values: Sequence[ForwardValue], cap: int, options: SolveOptions, clock: Clock, deadline: float
) -> tuple[Saving | None, int]:
    """The cheapest choice within the cap that some price per byte makes best, and the bound of the best price."""
    low, high = 0, SCALE
    found, bound = None, 0
    for _ in range(MOST_PRICES):
        price = high if found is None else (low + high) // 2
        one = _solve(values, cap, price, options, clock, deadline)
        if one is None:
            break
        bound = max(bound, one.bound_ps)
        if one.bytes <= cap:
            found = one if found is None or one.cost_ps < found.cost_ps else found
            high = price
        else:
            low, high = price, high if found is not None else 8 * high
        if found is not None and high - low <= 1:
            break
    return found, bound


def _solve(
    values: Sequence[ForwardValue],
    cap: int | None,
    price: int,
    options: SolveOptions,
    clock: Clock,
    deadline: float,
    start: Saving | None = None,
    gap: float = 0.0,
) -> Saving | None:
    """The cheapest choice within ``cap``; with a price, of the least cost plus ``price`` / SCALE picoseconds a byte.

    The latter may be above the cap; its bound is one on every choice within it.
    """
    model = cp_model.CpModel()
    variables = _variables(model, values)
    _add_constraints(model, values, variables)
    save = [one.save for one in variables]
    sizes = [value.bytes or 0 for value in values]
    if cap is not None and not price:
        model.add(cp_model.LinearExpr.weighted_sum(save, sizes) <= cap)
    # of choices that cost the same one that keeps fewer bytes, as shares of all that add up to less than a picosecond
    total = max(1, sum(sizes))
    shares = [price * size + size * (SCALE - 1) // total for size in sizes]
    times = [pair for value, one in zip(values, variables, strict=True) for pair in one.times(value)]
    model.minimize(
        cp_model.LinearExpr.weighted_sum([*save, *(v for v, _ in times)], [*shares, *(SCALE * ps for _, ps in times)])
    )
    if start is not None:
        for k, one in enumerate(variables):
            model.add_hint(one.save, k in start.saved)
    solver = configured(options, clock, deadline)
    solver.parameters.relative_gap_limit = gap
    status = run(solver, model, clock)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    saved = frozenset(k for k, variable in enumerate(save) if solver.value(variable))
    again = frozenset(
        k for k, one in enumerate(variables) if any(solver.value(variable) for variable in one.again.values())
    )
    cost = sum(ps for variable, ps in times if solver.value(variable))
    bound = max(0, (math.floor(solver.best_objective_bound) - price * (cap or 0)) // SCALE)
    return Saving(saved, again, cost, bound, sum(sizes[k] for k in saved), status == cp_model.OPTIMAL)


def least_bytes(values: Sequence[ForwardValue], options: SolveOptions, clock: Clock, deadline: float) -> int | None:
    """The fewest bytes that any choice keeps, or a bound below them if the time runs out; None if none is possible."""
    by_bytes = [
        replace(value, save_ps=value.bytes or 0, again_ps=_if_possible(value, 0), move_ps=0) for value in values
    ]
    found = choose_saving(by_bytes, None, options, clock, deadline)
    return None if found is None else found.bound_ps


def of_library_calls(values: Sequence[ForwardValue]) -> tuple[ForwardValue, ...]:
    """The problem whose bound holds for every schedule: what takes time is library calls that run again."""
    return tuple(
        replace(value, save_ps=0, again_ps=value.again_ps if value.library else _if_possible(value, 0), move_ps=0)
        for value in values
    )


def all_to_be_saved(values: Sequence[ForwardValue]) -> tuple[ForwardValue, ...]:
    """The problem whose best choice computes the fewest values again."""
    return tuple(replace(value, save_ps=0, again_ps=_if_possible(value, 1), move_ps=0) for value in values)


def _if_possible(value: ForwardValue, ps: int) -> int | None:
    return None if value.again_ps is None else ps


@dataclass(frozen=True, slots=True)
class _Variables:
    """The variables of one value; ``there``, ``again`` and ``read`` by the kinds of kernel that may hold it."""

    save: cp_model.IntVar
    written: cp_model.IntVar
    there: dict[int, cp_model.IntVar]
    again: dict[int, cp_model.IntVar]
    read: dict[int, cp_model.IntVar]

    def times(self, value: ForwardValue) -> list[tuple[cp_model.IntVar, int]]:
        """What takes time, with its picoseconds."""
        written = [] if value.library else [(self.written, value.move_ps)]
        moved = [(variable, value.move_ps) for variable in self.read.values()]
        again = [(variable, value.again_ps or 0) for variable in self.again.values()]
        return [(self.save, value.save_ps), *written, *moved, *again]


def _variables(model: cp_model.CpModel, values: Sequence[ForwardValue]) -> list[_Variables]:
    bases: list[int | None] = []  # what each is a view of: itself, another, or what the graph is given
    for k, value in enumerate(values):
        bases.append(k if not value.view else bases[value.inputs[0]] if value.inputs else None)
    asked = {bases[k] for k, value in enumerate(values) if value.called}
    asked |= {bases[u] for value in values if value.library for u in value.inputs}
    ours = {
        EARLY: _computed_from(values, {k for k in asked if k is not None and not values[k].library}),
        LATE: _computed_from(values, {k for k, value in enumerate(values) if value.looped}),
    }

    def variables(k: int, value: ForwardValue) -> _Variables:
        def some(name: str, kinds: Iterable[int]) -> dict[int, cp_model.IntVar]:
            return {kind: model.new_bool_var(f"{name}{kind} {value.name}") for kind in kinds}

        save, written = (model.new_bool_var(f"{name} {value.name}") for name in ("save", "written"))
        if not value.library and k not in asked:
            model.add(written == 0)
        kinds = [kind for kind in KINDS if k in ours[kind]]
        read = some("read", [] if value.view else kinds)
        again = [] if value.view or value.again_ps is None else [EARLY] if value.library else kinds
        return _Variables(save, written, some("there", kinds), some("again", again), read)

    return [variables(k, value) for k, value in enumerate(values)]


def _computed_from(values: Sequence[ForwardValue], wanted: set[int]) -> set[int]:
    """The values that a kernel which computes ``wanted`` may hold: what these are computed from by loops."""
    found: set[int] = set()
    ahead = list(wanted)
    while ahead:
        k = ahead.pop()
        if k not in found:
            found.add(k)
            ahead += () if values[k].library else values[k].inputs
    return found


def _add_constraints(model: cp_model.CpModel, values: Sequence[ForwardValue], variables: Sequence[_Variables]) -> None:
    """Every constraint but the cap."""
    stored: list[list[cp_model.IntVar] | None] = []  # any of these; None: in memory in any case
    for value, one in zip(values, variables, strict=True):
        if value.bytes is None:
            model.add(one.save == 0)
        if value.view:
            stored.append(stored[value.inputs[0]] if value.inputs else None)
        else:
            stored.append([one.save, one.written])
            for kind, there in one.there.items():
                computed = [one.again[kind]] if kind in one.again and not value.library else []
                model.add_bool_or(~there, one.read[kind], *computed)
                model.add_bool_or(~one.read[kind], one.save, one.written)
            for again in one.again.values():
                model.add_implication(one.save, ~again)
        model.add_bool_or(~one.written, *(one.again[kind] for kind in one.again if kind == EARLY))
        for kind, computed in (one.there if value.view else one.again).items():
            for u in value.inputs:
                if value.library:
                    _add_stored(model, stored[u], computed)
                else:
                    model.add_implication(computed, variables[u].there[kind])
        if value.called:
            _add_stored(model, stored[-1])
        if value.looped:
            model.add(one.there[LATE] == 1)


def _add_stored(model: cp_model.CpModel, stored: list[cp_model.IntVar] | None, *wherever: cp_model.IntVar) -> None:
    """A value is in memory where all of ``wherever`` are 1."""
    if stored is not None:
        model.add_bool_or(*stored, *(~variable for variable in wherever))
