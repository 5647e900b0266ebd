"""The variables of the joint model.

A *column* is a kernel that may be chosen (``solver.joint.columns``). Its position is that of its *anchors*: the ops in
it that are computed once, and the values of recomputed ops that it writes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ortools.sat.python import cp_model

from optfuse.problem.cost import topology
from optfuse.problem.op_masks import bits
from optfuse.solver.joint.columns import Column
from optfuse.solver.joint.feasible_columns import producers_of
from optfuse.solver.joint.scope import Scope, Storage

#: What has a position: an op that is computed once, or the value (a buffer) of a recomputable one.
Anchor = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Life:
    """The lifetime of a storage: from ``first`` on, and no more at ``last``. ``present``: always, if None."""

    first: cp_model.IntVar
    last: cp_model.IntVar
    length: cp_model.IntVar
    present: cp_model.IntVar | None


@dataclass(slots=True)
class JointModel:
    """The variables of the joint model.

    Attributes:
        scope: The ops to decide and their surroundings.
        columns: The kernels that may be chosen.
        cap: Bytes that may be live at once.
        least_peak: Whether the peak is the objective; the cap is then an upper limit.
        chosen: By column, whether it is a kernel of the schedule.
        taken: By variant (its position) and alternative, whether that one runs.
        runs: For ops of alternatives, whether they run.
        at: Positions.
        anchors: By column, its anchors.
        holding: By op, the columns that hold it.
        writing: By buffer, the columns that write it.
        makers: By buffer, the ops that make it here.
        lives: By storage, its interval; none where nothing could write it.
        peak: The peak in units of bytes, if it is the objective.
        horizon: How many positions there are.
        unit: All sizes are multiples of so many bytes.
    """

    scope: Scope
    columns: Sequence[Column]
    cap: int
    least_peak: bool = False
    cp: cp_model.CpModel = field(default_factory=cp_model.CpModel)
    chosen: list[cp_model.IntVar] = field(default_factory=list)
    taken: dict[tuple[int, int], cp_model.IntVar] = field(default_factory=dict)
    runs: dict[int, cp_model.IntVar] = field(default_factory=dict)
    at: dict[Anchor, cp_model.IntVar] = field(default_factory=dict)
    anchors: list[tuple[Anchor, ...]] = field(default_factory=list)
    holding: dict[int, list[int]] = field(default_factory=dict)
    writing: dict[int, list[int]] = field(default_factory=dict)
    producers: dict[int, set[int]] = field(default_factory=dict)
    lives: dict[int, Life] = field(default_factory=dict)
    peak: cp_model.IntVar | None = None
    horizon: int = 1
    unit: int = 1
    _sums: dict[tuple[int, ...], cp_model.IntVar] = field(default_factory=dict)

    def any_of(self, numbers: Iterable[int]) -> cp_model.IntVar:
        """A Boolean that is true when one of some mutually exclusive columns is chosen."""
        key = tuple(sorted(set(numbers)))
        if len(key) == 1:
            return self.chosen[key[0]]
        if key not in self._sums:
            self._sums[key] = self.cp.new_bool_var("")
            self.cp.add(sum(self.chosen[k] for k in key) == self._sums[key])
        return self._sums[key]

    def objective(self) -> cp_model.LinearExprT:
        """The peak, or the cost of the chosen columns in picoseconds."""
        if self.peak is not None:
            return self.peak
        return sum(column.cost * chosen for column, chosen in zip(self.columns, self.chosen, strict=True))


def joint_model(scope: Scope, columns: Sequence[Column], cap: int | None, *, least_peak: bool) -> JointModel:
    """The model with its variables and no constraints. ``cap``: bytes that may be live at once; None: any number."""
    ceiling = cap if cap is not None else scope.base + sum(storage.bytes for storage in scope.storages)
    model = JointModel(scope, columns, ceiling, least_peak, producers=producers_of(scope))
    _add_columns(model)
    _add_alternatives(model)
    _add_lives(model)
    return model


def _add_columns(model: JointModel) -> None:
    """A Boolean a column, and a position an anchor."""
    scope, cp = model.scope, model.cp
    index = topology(scope.instance)
    model.chosen = [cp.new_bool_var(f"column_{k}") for k in range(len(model.columns))]
    for k, column in enumerate(model.columns):
        for op in column.ops:
            model.holding.setdefault(op, []).append(k)
        for buffer in column.writes:
            model.writing.setdefault(buffer, []).append(k)
        anchors: list[Anchor] = [("op", op) for op in bits(column.mask & ~scope.recomputable)]
        for op in bits(column.mask & scope.recomputable):
            mine = {write[0] for write in index.priced[op][column.scheme].writes}
            anchors += [("value", buffer) for buffer in column.writes if buffer in mine]
        model.anchors.append(tuple(anchors))
    every = dict.fromkeys(anchor for anchors in model.anchors for anchor in anchors)
    model.horizon = max(1, len(every))
    model.at = {anchor: cp.new_int_var(0, model.horizon - 1, f"at_{anchor[0]}_{anchor[1]}") for anchor in every}


def _add_alternatives(model: JointModel) -> None:
    """A Boolean for each alternative, and for each op of one, of the variants whose ops are all in the scope."""
    for number, variant in enumerate(model.scope.instance.variants):
        members = {op for option in variant.alternatives for op in option}
        if not all(model.scope.required >> op & 1 for op in members):
            continue
        for option in range(len(variant.alternatives)):
            model.taken[number, option] = model.cp.new_bool_var(f"{variant.name}_{option}")
        for op in sorted(members):
            model.runs[op] = model.cp.new_bool_var(f"runs_{op}")


def _add_lives(model: JointModel) -> None:
    """An interval for each storage that has bytes and may be present."""
    scope, cp = model.scope, model.cp
    sized = [storage for storage in scope.storages if storage.bytes]
    model.unit = math.gcd(*(storage.bytes for storage in sized)) or 1
    most = max(0, (model.cap - scope.base) // model.unit)
    model.peak = cp.new_int_var(0, most, "peak") if model.least_peak else None
    for storage in sized:
        if storage.from_start or writers_of(model, storage):
            model.lives[storage.buffer] = _life(model, storage)


def _life(model: JointModel, storage: Storage) -> Life:
    end, cp = model.horizon, model.cp
    first = cp.new_int_var(0, 0 if storage.from_start else end - 1, "")
    last = cp.new_int_var(end if storage.to_end else 1, end, "")
    present = None if storage.from_start else cp.new_bool_var("")
    return Life(first, last, cp.new_int_var(1, end, ""), present)


def writers_of(model: JointModel, storage: Storage) -> list[cp_model.IntVar]:
    """The columns that write a buffer of this storage."""
    root = model.scope.root
    return [model.chosen[k] for b, numbers in model.writing.items() if root[b] == storage.buffer for k in numbers]
