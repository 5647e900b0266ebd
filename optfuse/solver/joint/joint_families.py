"""The constraint families of the joint model, one function each; together they allow exactly the schedules of a scope.

``tests/oracle/test_families.py`` drops each in turn and demands that an invalid schedule is then found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ortools.sat.python import cp_model

from optfuse.problem.cost import topology
from optfuse.problem.op_masks import bits
from optfuse.solver.joint.joint_model import Anchor, JointModel, writers_of

Family = Callable[[JointModel], None]


def add_alternatives(model: JointModel) -> None:
    """One alternative of each variant runs."""
    for number in dict.fromkeys(variant for variant, _ in model.taken):
        model.cp.add_exactly_one(take for (variant, _), take in model.taken.items() if variant == number)


def add_running(model: JointModel) -> None:
    """An op of alternatives runs exactly when one of them is taken."""
    variants = model.scope.instance.variants
    holding: dict[int, list[cp_model.IntVar]] = {op: [] for op in model.runs}
    for (number, option), take in model.taken.items():
        for op in variants[number].alternatives[option]:
            holding[op].append(take)
    for op, loads in holding.items():
        model.cp.add(model.runs[op] == sum(loads))


def add_cover(model: JointModel) -> None:
    """An op that is computed once lies in one chosen column, if it runs."""
    for op in bits(model.scope.required):
        columns = [model.chosen[k] for k in model.holding.get(op, ())]
        if op in model.runs:
            model.cp.add(sum(columns) == model.runs[op])
        else:
            model.cp.add_exactly_one(columns)


def add_recomputed_writes(model: JointModel) -> None:
    """The value of a recomputed op is written by at most one column, and only if another loads it.

    Writing it twice never helps. The checker refuses a kernel whose only writes are never loaded.
    """
    scope = model.scope
    for buffer, numbers in model.writing.items():
        if any(scope.recomputable >> op & 1 for op in model.producers[buffer]):
            model.cp.add_at_most_one(model.chosen[k] for k in numbers)
            if buffer not in scope.required_writes:
                consumers = [model.chosen[k] for k, column in enumerate(model.columns) if buffer in column.loads]
                model.cp.add_bool_or([*consumers, ~model.any_of(numbers)])


def add_owed_writes(model: JointModel) -> None:
    """Each value that later kernels or the caller need is written by a chosen column."""
    for buffer in model.scope.required_writes:
        if not any(op in model.runs for op in model.producers.get(buffer, ())):
            model.cp.add_bool_or([model.chosen[k] for k in model.writing.get(buffer, ())])


def add_taken_values(model: JointModel) -> None:
    """A value that is made in this scope and loaded by a chosen column is written by another, for each producer."""
    scope, index = model.scope, topology(model.scope.instance)
    wanting: dict[tuple[Anchor, int, int | None], list[int]] = {}
    for k, column in enumerate(model.columns):
        anchor = model.anchors[k][0]
        for buffer in column.loads:
            made_here = scope.instance.buffers[buffer].kind == "temporary" and buffer not in scope.stored
            if made_here and len(model.producers[buffer]) == 1:
                wanting.setdefault((anchor, buffer, None), []).append(k)
        for op in column.ops:
            for source, buffer in index.sources[op]:
                if buffer is None or buffer in scope.stored or len(model.producers.get(buffer, ())) < 2:
                    continue
                if scope.ops >> source & 1 and not column.mask >> source & 1:
                    wanting.setdefault((anchor, buffer, source), []).append(k)
    for (_, buffer, source), numbers in wanting.items():
        writers = [
            model.chosen[k]
            for k in model.writing.get(buffer, ())
            if source is None or model.columns[k].mask >> source & 1
        ]
        rule = model.cp.add(sum(writers) >= model.any_of(numbers))
        if source in model.runs:
            rule.only_enforce_if(model.runs[source])


def add_same_place(model: JointModel) -> None:
    """All anchors of a chosen column have one position."""
    pairs: dict[tuple[Anchor, Anchor], list[int]] = {}
    for k, anchors in enumerate(model.anchors):
        for anchor in anchors[1:]:
            pairs.setdefault((anchors[0], anchor), []).append(k)
    for (first, other), numbers in pairs.items():
        model.cp.add(model.at[first] == model.at[other]).only_enforce_if(model.any_of(numbers))


def add_precedence(model: JointModel) -> None:
    """An op comes after its predecessors in other columns."""
    scope = model.scope
    for edge in scope.instance.edges:
        if (scope.ops & ~scope.recomputable) >> edge.src & (scope.ops & ~scope.recomputable) >> edge.dst & 1:
            _after(model, edge.src, edge.dst)


def _after(model: JointModel, src: int, dst: int) -> None:
    together = set(model.holding.get(src, ())) & set(model.holding.get(dst, ()))
    if ("op", src) not in model.at or ("op", dst) not in model.at:
        return
    distance = 1 - sum(model.chosen[k] for k in together)
    rule = model.cp.add(model.at["op", dst] >= model.at["op", src] + distance)
    conditions = [model.runs[op] for op in (src, dst) if op in model.runs]
    if conditions:
        rule.only_enforce_if(conditions)


def add_precedence_of_recomputed(model: JointModel) -> None:
    """A column comes after the one that writes a recomputed value that it loads; a recomputed op after its inputs."""
    scope = model.scope
    for edge in scope.instance.edges:
        if (
            scope.ops >> edge.src & scope.ops >> edge.dst & 1
            and (scope.recomputable >> edge.src | scope.recomputable >> edge.dst) & 1
        ):
            _after_recomputed(model, edge.src, edge.dst, edge.buffer)


def _after_recomputed(model: JointModel, src: int, dst: int, buffer: int | None) -> None:
    """Columns that hold ``dst`` and not ``src`` come after the op, or after the column that writes the value."""
    assert buffer is not None, "a recomputable op has no order edges"
    source: Anchor = ("value", buffer) if model.scope.recomputable >> src & 1 else ("op", src)
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


def add_lifetimes(model: JointModel) -> None:
    """A storage is present if a column writes it, and lives from its first use to its last."""
    uses = _uses(model)
    for storage in model.scope.storages:
        life = model.lives.get(storage.buffer)
        if life is None:
            continue
        if life.present is not None:
            model.cp.add_max_equality(life.present, writers_of(model, storage))
        for anchor, numbers in uses.get(storage.buffer, {}).items():
            conditions = _when(model, storage.buffer, anchor, numbers)
            for rule in (model.cp.add(life.first <= model.at[anchor]), model.cp.add(life.last > model.at[anchor])):
                if conditions:
                    rule.only_enforce_if(conditions)


def add_unused(model: JointModel) -> None:
    """A donated input that no kernel may use lives as long as the first kernel."""
    early = [s for s in model.scope.storages if s.buffer in model.lives and s.from_start and not s.to_end]
    if not early:
        return
    uses, first = _uses(model), None
    for storage in early:
        mine = uses.get(storage.buffer, {})
        if all(_when(model, storage.buffer, anchor, numbers) for anchor, numbers in mine.items()):
            first = _first_position(model) if first is None else first
            model.cp.add(model.lives[storage.buffer].last > first)


def _first_position(model: JointModel) -> cp_model.IntVar:
    """The position of the first kernel; anchors that do not run are put at the end."""
    for anchor, variable in model.at.items():
        numbers = [k for k, anchors in enumerate(model.anchors) if anchor in anchors]
        if anchor[0] == "value" or anchor[1] in model.runs:
            model.cp.add(variable == model.horizon - 1).only_enforce_if(~model.any_of(numbers))
    first = model.cp.new_int_var(0, model.horizon - 1, "first_position")
    model.cp.add_min_equality(first, list(model.at.values()) or [0])
    return first


def add_memory(model: JointModel) -> None:
    """No more bytes are live at any position than the cap, or the peak that is the objective."""
    sizes = {storage.buffer: storage.bytes // model.unit for storage in model.scope.storages}
    intervals: list[cp_model.IntervalVar] = []
    for life in model.lives.values():
        if life.present is None:
            intervals.append(model.cp.new_interval_var(life.first, life.length, life.last, ""))
        else:
            intervals.append(model.cp.new_optional_interval_var(life.first, life.length, life.last, life.present, ""))
    top = max(0, (model.cap - model.scope.base) // model.unit)
    if intervals:
        limit = top if model.peak is None else model.peak
        model.cp.add_cumulative(intervals, [sizes[buffer] for buffer in model.lives], limit)


def _uses(model: JointModel) -> dict[int, dict[Anchor, list[int]]]:
    """By storage: the anchors at which columns use it, with these columns.

    An op that is computed once uses a storage at its own anchor, a recomputed op at the first anchor of its column.
    """
    scope = model.scope
    index = topology(scope.instance)
    uses: dict[int, dict[Anchor, list[int]]] = {}
    for k, column in enumerate(model.columns):
        touched = {scope.root[buffer] for buffer in (*column.loads, *column.writes)}
        for op in column.ops:
            anchor = model.anchors[k][0] if scope.recomputable >> op & 1 else ("op", op)
            offer = index.offers[op][column.scheme]
            mine = {access.buffer for access in (*offer.reads, *offer.writes)}
            mine.update(buffer for _, buffer in index.sources[op] if buffer is not None)
            for root in {scope.root[buffer] for buffer in mine} & touched:
                numbers = uses.setdefault(root, {}).setdefault(anchor, [])
                if not numbers or numbers[-1] != k:
                    numbers.append(k)
    return uses


def _when(model: JointModel, storage: int, anchor: Anchor, numbers: Sequence[int]) -> list[cp_model.IntVar]:
    """The conditions under which an anchor uses a storage.

    Only that the op runs, where all columns that hold the op use the storage; so too where the others hold the one op
    that writes it: they keep the value in registers, and no storage is present that could live too long.
    """
    kind, op = anchor
    scope = model.scope
    if kind == "op" and not scope.recomputable:
        others = set(model.holding[op]).difference(numbers)
        producers = (
            {m for b, ms in model.producers.items() if scope.root[b] == storage for m in ms} if others else set[int]()
        )
        life = model.lives[storage]
        absent = life.present is not None and len(producers) == 1
        if all(absent and model.columns[k].mask >> min(producers) & 1 for k in others):
            return [model.runs[op]] if op in model.runs else []
    return [model.any_of(numbers)]


#: All families.
FAMILIES: tuple[Family, ...] = (
    add_alternatives,
    add_running,
    add_cover,
    add_recomputed_writes,
    add_owed_writes,
    add_taken_values,
    add_same_place,
    add_precedence,
    add_precedence_of_recomputed,
    add_lifetimes,
    add_unused,
    add_memory,
)
