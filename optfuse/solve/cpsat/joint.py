"""The joint model: which kernels, in what order, within how many bytes; ops computed several times where allowed.

- variables: one Boolean a column (``solve.columns``); a position in time for each op that is computed once and for each
  value of a copyable op; begin and end of each storage;
- families: every op once, a value written once if anybody takes it from memory, kernels in one place, values before
  their use, lifetimes that cover all uses, and no more bytes live at any time than the cap;
- objective: the cost of the chosen columns, or the peak.

Kernels may stand at one position: they are then live together, which is never less than one after the other. So
positions need not differ, and the order read off the model has at most the peak that the model counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ortools.sat.python import cp_model

from optfuse.problem.cost import topology
from optfuse.problem.legality import bits
from optfuse.solve.available import makers_of
from optfuse.solve.clock import WALL, Clock
from optfuse.solve.columns import Column
from optfuse.solve.cpsat.running import configured, run
from optfuse.solve.options import SolveOptions
from optfuse.solve.scope import Scope

Literal = cp_model.IntVar | int
#: What stands at a position: an op that is computed once, or the value (a buffer) of a copyable one.
Anchor = tuple[str, int]


@dataclass(frozen=True, slots=True)
class JointResult:
    """``columns`` in order, or None when none were found. ``bound`` is on the objective asked for.

    ``infeasible``: it was proven that these columns allow no schedule within the cap.
    """

    columns: tuple[Column, ...] | None
    bound: int
    proven: bool
    infeasible: bool = False


@dataclass(slots=True)
class _Model:
    """The model while it is built. ``lits`` remembers sums of columns that are used as conditions."""

    scope: Scope
    columns: Sequence[Column]
    cap: int
    cp: cp_model.CpModel = field(default_factory=cp_model.CpModel)
    chosen: list[cp_model.IntVar] = field(default_factory=list)
    taken: dict[int, cp_model.IntVar] = field(default_factory=dict)
    runs: dict[int, cp_model.IntVar] = field(default_factory=dict)
    at: dict[Anchor, cp_model.IntVar] = field(default_factory=dict)
    anchors: list[tuple[Anchor, ...]] = field(default_factory=list)
    holding: dict[int, list[int]] = field(default_factory=dict)
    writing: dict[int, list[int]] = field(default_factory=dict)
    lives: dict[int, tuple[cp_model.IntVar, cp_model.IntVar]] = field(default_factory=dict)
    lits: dict[tuple[int, ...], cp_model.IntVar] = field(default_factory=dict)
    peak: cp_model.IntVar | None = None
    horizon: int = 1

    def any_of(self, numbers: Iterable[int]) -> cp_model.IntVar:
        """A Boolean that is true when one of some columns, at most one of which can be, is chosen."""
        key = tuple(sorted(set(numbers)))
        if len(key) == 1:
            return self.chosen[key[0]]
        if key not in self.lits:
            self.lits[key] = self.cp.new_bool_var("")
            self.cp.add(sum(self.chosen[k] for k in key) == self.lits[key])
        return self.lits[key]


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
) -> JointResult:
    """Choose and order columns.

    Parameters
    ----------
    deadline
        A time of ``clock``.
    cap
        Bytes that may be live at once; None: any number.
    least_peak
        Minimise the peak instead of the cost.
    start
        A schedule to start from, made of the columns; it need not keep the cap.
    at_most
        What the objective may be at most.
    """
    ceiling = cap if cap is not None else scope.base + sum(storage.bytes for storage in scope.storages)
    model = _Model(scope, columns, ceiling)
    _add_variables(model)
    _add_cover(model)
    _add_values(model)
    _add_same_place(model)
    _add_precedence(model)
    unit = _add_lifetimes(model, least_peak=least_peak)
    objective = _objective(model)
    if at_most is not None:
        model.cp.add(objective <= ((at_most - scope.base) // unit if least_peak else at_most))
    model.cp.minimize(objective)
    if start is not None:
        _hint(model, start)
    solver = configured(options, clock, deadline)
    status = run(solver, model.cp, clock)
    if status == cp_model.INFEASIBLE:
        return JointResult(None, 0, proven=False, infeasible=True)
    bound = max(0, math.ceil(solver.best_objective_bound - 1e-6)) if solver.best_objective_bound < 1 << 53 else 0
    bound = scope.base + unit * bound if least_peak else bound
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return JointResult(None, bound, proven=False)
    return JointResult(_in_order(model, solver), bound, status == cp_model.OPTIMAL)


def _add_variables(model: _Model) -> None:
    """A Boolean a column, an alternative of a variant and an op that need not run; a position an anchor."""
    scope, cp = model.scope, model.cp
    index = topology(scope.instance)
    model.chosen = [cp.new_bool_var(f"column_{k}") for k in range(len(model.columns))]
    for k, column in enumerate(model.columns):
        for op in column.ops:
            model.holding.setdefault(op, []).append(k)
        for buffer in column.writes:
            model.writing.setdefault(buffer, []).append(k)
        anchors: list[Anchor] = [("op", op) for op in bits(column.mask & ~scope.copies)]
        for op in bits(column.mask & scope.copies):
            mine = {write[0] for write in index.priced[op][column.scheme].writes}
            anchors += [("value", buffer) for buffer in column.writes if buffer in mine]
        model.anchors.append(tuple(anchors))
    every = dict.fromkeys(anchor for anchors in model.anchors for anchor in anchors)
    model.horizon = max(1, len(every))
    model.at = {anchor: cp.new_int_var(0, model.horizon - 1, f"at_{anchor[0]}_{anchor[1]}") for anchor in every}


def _add_cover(model: _Model) -> None:
    """An op that is computed once lies in one chosen column; of alternatives, those of one run."""
    scope, cp = model.scope, model.cp
    alternatives: dict[int, list[cp_model.IntVar]] = {}
    for variant in scope.instance.variants:
        if not any(scope.duty >> op & 1 for option in variant.alternatives for op in option):
            continue
        takes = [cp.new_bool_var(f"{variant.name}_{number}") for number in range(len(variant.alternatives))]
        cp.add_exactly_one(takes)
        for take, option in zip(takes, variant.alternatives, strict=True):
            for op in option:
                alternatives.setdefault(op, []).append(take)
    for op in bits(scope.duty):
        columns = [model.chosen[k] for k in model.holding.get(op, ())]
        if op in alternatives:
            model.runs[op] = cp.new_bool_var(f"runs_{op}")
            cp.add(model.runs[op] == sum(alternatives[op]))
            cp.add(sum(columns) == model.runs[op])
        else:
            cp.add_exactly_one(columns)


def _add_values(model: _Model) -> None:
    """What a chosen column takes from memory, if it is made here, is written by one other; what is owed is written.

    No copy is written for nobody: it would be a kernel more for nothing but the places that it shifts.
    """
    scope, cp = model.scope, model.cp
    makers = makers_of(scope)
    for buffer, numbers in model.writing.items():
        if any(scope.copies >> op & 1 for op in makers[buffer]):
            cp.add_at_most_one(model.chosen[k] for k in numbers)
            if buffer not in scope.owed:
                takers = [model.chosen[k] for k, column in enumerate(model.columns) if buffer in column.takes]
                cp.add_bool_or([*takers, ~model.any_of(numbers)])
    for buffer in scope.owed:
        if not any(op in model.runs for op in makers.get(buffer, ())):
            cp.add_bool_or([model.chosen[k] for k in model.writing.get(buffer, ())])
    wanting: dict[tuple[Anchor, int], list[int]] = {}
    for k, column in enumerate(model.columns):
        for buffer in column.takes:
            if scope.instance.buffers[buffer].kind == "temporary" and buffer not in scope.given:
                wanting.setdefault((model.anchors[k][0], buffer), []).append(k)
    for (_, buffer), numbers in wanting.items():
        writers = [model.chosen[k] for k in model.writing.get(buffer, ())]
        cp.add(sum(writers) >= model.any_of(numbers))


def _add_same_place(model: _Model) -> None:
    """What a column computes, it computes at one position."""
    pairs: dict[tuple[Anchor, Anchor], list[int]] = {}
    for k, anchors in enumerate(model.anchors):
        for anchor in anchors[1:]:
            pairs.setdefault((anchors[0], anchor), []).append(k)
    for (first, other), numbers in pairs.items():
        model.cp.add(model.at[first] == model.at[other]).only_enforce_if(model.any_of(numbers))


def _add_precedence(model: _Model) -> None:
    """A column comes after those that hold what it needs and does not hold itself."""
    scope = model.scope
    for edge in scope.instance.edges:
        if not (scope.ops >> edge.src & 1 and scope.ops >> edge.dst & 1):
            continue
        if scope.copies >> edge.dst & 1 or scope.copies >> edge.src & 1:
            _after_copies(model, edge.src, edge.dst, edge.buffer)
        else:
            _after(model, edge.src, edge.dst)


def _after(model: _Model, src: int, dst: int) -> None:
    together = set(model.holding.get(src, ())) & set(model.holding.get(dst, ()))
    if ("op", src) not in model.at or ("op", dst) not in model.at:
        return
    distance = 1 - sum(model.chosen[k] for k in together)
    rule = model.cp.add(model.at["op", dst] >= model.at["op", src] + distance)
    conditions = [model.runs[op] for op in (src, dst) if op in model.runs]
    if conditions:
        rule.only_enforce_if(conditions)


def _after_copies(model: _Model, src: int, dst: int, buffer: int | None) -> None:
    """Columns that hold ``dst`` and not ``src`` come after the op, or after the column that writes the value."""
    assert buffer is not None, "nothing orders a copyable op but the values that it uses and makes"
    source: Anchor = ("value", buffer) if model.scope.copies >> src & 1 else ("op", src)
    if source not in model.at:
        return
    waiting: dict[Anchor, list[int]] = {}
    for k in model.holding.get(dst, ()):
        if not model.columns[k].mask >> src & 1:
            waiting.setdefault(model.anchors[k][0], []).append(k)
    for anchor, numbers in waiting.items():
        condition = [model.any_of(numbers)]
        if src in model.runs:
            condition.append(model.runs[src])
        model.cp.add(model.at[anchor] > model.at[source]).only_enforce_if(condition)


def _add_lifetimes(model: _Model, *, least_peak: bool) -> int:
    """Each storage lives from its first use to its last; together they keep the cap. Returns the unit of bytes."""
    scope, cp = model.scope, model.cp
    sized = [storage for storage in scope.storages if storage.bytes]
    unit = math.gcd(*(storage.bytes for storage in sized)) or 1
    uses = _uses(model)
    intervals: list[cp_model.IntervalVar] = []
    demands: list[int] = []
    for storage in sized:
        mine = uses.get(storage.buffer, {})
        written = _written(model, storage.buffer)
        if not storage.from_start and not written:
            continue
        end_of_time = model.horizon
        first = cp.new_int_var(0, 0 if storage.from_start else end_of_time - 1, "")
        last = cp.new_int_var(end_of_time if storage.to_end else 1, end_of_time, "")
        length = cp.new_int_var(1, end_of_time, "")
        model.lives[storage.buffer] = (first, last)
        if storage.from_start:
            intervals.append(cp.new_interval_var(first, length, last, ""))
        else:
            present = cp.new_bool_var("")
            cp.add_max_equality(present, written)
            intervals.append(cp.new_optional_interval_var(first, length, last, present, ""))
        demands.append(storage.bytes // unit)
        if not mine:
            cp.add(last > _first_position(model))
        for anchor, numbers in mine.items():
            conditions = _when(model, anchor, numbers)
            for rule in (cp.add(first <= model.at[anchor]), cp.add(last > model.at[anchor])):
                if conditions:
                    rule.only_enforce_if(conditions)
    top = max(0, (model.cap - scope.base) // unit)
    model.peak = cp.new_int_var(0, top, "peak") if least_peak else None
    if intervals:
        cp.add_cumulative(intervals, demands, top if model.peak is None else model.peak)
    return unit


def _first_position(model: _Model) -> cp_model.IntVar:
    """Where the first kernel runs. What does not run is put at the end of time."""
    for anchor, variable in model.at.items():
        numbers = [k for k, anchors in enumerate(model.anchors) if anchor in anchors]
        if anchor[0] == "value" or anchor[1] in model.runs:
            model.cp.add(variable == model.horizon - 1).only_enforce_if(~model.any_of(numbers))
    first = model.cp.new_int_var(0, model.horizon - 1, "first_position")
    model.cp.add_min_equality(first, list(model.at.values()))
    return first


def _uses(model: _Model) -> dict[int, dict[Anchor, list[int]]]:
    """By storage: the anchors of columns that use it, with these columns.

    An op that is computed once and uses a buffer outside its column does so at its own position; elsewhere the first
    anchor of the column speaks for it.
    """
    scope = model.scope
    index = topology(scope.instance)
    uses: dict[int, dict[Anchor, list[int]]] = {}
    for k, column in enumerate(model.columns):
        touched = {scope.root[buffer] for buffer in (*column.takes, *column.writes)}
        for op in bits(column.mask & ~scope.copies):
            offer = index.offers[op][column.scheme]
            mine = {access.buffer for access in (*offer.reads, *offer.writes)}
            mine.update(buffer for _, buffer in index.sources[op] if buffer is not None)
            for root in {scope.root[buffer] for buffer in mine} & touched:
                uses.setdefault(root, {}).setdefault(("op", op), []).append(k)
        for op in bits(column.mask & scope.copies):
            offer = index.offers[op][column.scheme]
            mine = {access.buffer for access in (*offer.reads, *offer.writes)}
            mine.update(buffer for _, buffer in index.sources[op] if buffer is not None)
            for root in {scope.root[buffer] for buffer in mine} & touched:
                numbers = uses.setdefault(root, {}).setdefault(model.anchors[k][0], [])
                if not numbers or numbers[-1] != k:
                    numbers.append(k)
    return uses


def _when(model: _Model, anchor: Anchor, numbers: Sequence[int]) -> list[cp_model.IntVar]:
    """The conditions under which an anchor uses a storage.

    A column with the value in registers has its maker at the same position: the use adds nothing, so an op that runs in
    any case needs no condition.
    """
    kind, op = anchor
    if kind == "op" and not model.scope.copies:
        return [model.runs[op]] if op in model.runs else []
    return [model.any_of(numbers)]


def _written(model: _Model, buffer: int) -> list[cp_model.IntVar]:
    """The columns that write a buffer, or one that shares its storage."""
    root = model.scope.root
    return [model.chosen[k] for other, numbers in model.writing.items() if root[other] == buffer for k in numbers]


def _objective(model: _Model) -> cp_model.LinearExprT:
    if model.peak is not None:
        return model.peak
    return sum(column.cost * chosen for column, chosen in zip(model.columns, model.chosen, strict=True))


def _hint(model: _Model, start: Sequence[Column]) -> None:
    """Say all of a known schedule: which columns, and when everything is."""
    place = {(column.mask, column.writes): position for position, column in enumerate(start)}
    for column, variable, anchors in zip(model.columns, model.chosen, model.anchors, strict=True):
        position = place.get((column.mask, column.writes))
        model.cp.add_hint(variable, position is not None)
        if position is not None:
            for anchor in anchors:
                model.cp.add_hint(model.at[anchor], min(position, model.horizon - 1))
    _hint_lives(model, start)


def _hint_lives(model: _Model, start: Sequence[Column]) -> None:
    scope = model.scope
    users: dict[int, list[int]] = {}
    for position, column in enumerate(start):
        for buffer in (*column.takes, *column.writes):
            users.setdefault(scope.root[buffer], []).append(min(position, model.horizon - 1))
    facts: Mapping[int, tuple[bool, bool]] = {s.buffer: (s.from_start, s.to_end) for s in scope.storages}
    for buffer, (first, last) in model.lives.items():
        if buffer in users:
            early, late = facts[buffer]
            model.cp.add_hint(first, 0 if early else min(users[buffer]))
            model.cp.add_hint(last, model.horizon if late else max(users[buffer]) + 1)


def _in_order(model: _Model, solver: cp_model.CpSolver) -> tuple[Column, ...]:
    """The chosen columns by position. Of several at one position none needs another, so any order will do."""
    found = [
        (solver.value(model.at[anchors[0]]), column.mask & -column.mask, k)
        for k, (column, anchors) in enumerate(zip(model.columns, model.anchors, strict=True))
        if solver.boolean_value(model.chosen[k])
    ]
    return tuple(model.columns[k] for _, _, k in sorted(found))
