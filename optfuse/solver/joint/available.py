"""Which columns can be part of a schedule of a scope at all: what they need is there, and they fit into memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from optfuse.problem.cost import topology
from optfuse.problem.legality import bits
from optfuse.solver.joint.columns import Column
from optfuse.solver.joint.scope import Scope


def feasible_columns(scope: Scope, columns: Iterable[Column], cap: int | None = None) -> list[Column]:
    """The columns for which all that they need can be there, and that alone do not exceed the cap."""
    makers = makers_of(scope)
    buffers = scope.instance.buffers
    known = {storage.buffer for storage in scope.storages}
    kept: list[Column] = []
    for column in columns:
        there = all(
            scope.root[buffer] not in scope.gone
            and (buffers[buffer].kind != "temporary" or buffer in scope.given or buffer in makers)
            for buffer in column.takes
        )
        fresh = all(
            buffers[buffer].kind != "temporary"
            or (_has_storage(scope, scope.root[buffer], known) and buffer not in scope.given)
            for buffer in column.writes
        )
        if there and fresh and (cap is None or floor_of(scope, column) <= cap):
            kept.append(column)
    return kept


def _has_storage(scope: Scope, storage: int, known: Collection[int]) -> bool:
    """Whether there is memory to write to: of the stretch's own, or of an input that is still there."""
    return storage in known or (scope.instance.buffers[storage].kind != "temporary" and storage not in scope.gone)


def floor_of(scope: Scope, column: Column) -> int:
    """Bytes that are live while a column runs, wherever it runs."""
    touched = {scope.root[buffer] for buffer in (*column.takes, *column.writes)}
    return scope.base + sum(s.bytes for s in scope.storages if s.buffer in touched)


def makers_of(scope: Scope) -> dict[int, set[int]]:
    """The ops of the scope that make each buffer here."""
    index = topology(scope.instance)
    makers: dict[int, set[int]] = {}
    for op in bits(scope.ops):
        for priced in index.priced[op].values():
            for write in priced.writes:
                makers.setdefault(write[0], set()).add(op)
    return makers
