"""The columns that can be part of a schedule of a scope: their inputs can be available, and they fit into memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from optfuse.problem.cost import topology
from optfuse.problem.op_masks import bits
from optfuse.solver.joint.columns import Column
from optfuse.solver.joint.scope import Scope


def feasible_columns(scope: Scope, columns: Iterable[Column], cap: int | None = None) -> list[Column]:
    """The columns whose loads and writes can have memory, and whose own buffers do not exceed the cap."""
    producers = producers_of(scope)
    buffers = scope.instance.buffers
    known = {storage.buffer for storage in scope.storages}
    kept: list[Column] = []
    for column in columns:
        loadable = all(
            scope.root[buffer] not in scope.absent
            and (buffers[buffer].kind != "temporary" or buffer in scope.stored or buffer in producers)
            for buffer in column.loads
        )
        writable = all(
            buffers[buffer].kind != "temporary"
            or (_has_storage(scope, scope.root[buffer], known) and buffer not in scope.stored)
            for buffer in column.writes
        )
        if loadable and writable and (cap is None or least_live_bytes(scope, column) <= cap):
            kept.append(column)
    return kept


def _has_storage(scope: Scope, storage: int, known: Collection[int]) -> bool:
    """Whether there is memory to write to: a storage of the window, or that of an input that is still live."""
    return storage in known or (scope.instance.buffers[storage].kind != "temporary" and storage not in scope.absent)


def least_live_bytes(scope: Scope, column: Column) -> int:
    """The least bytes that are live while a column runs, at any position."""
    touched = {scope.root[buffer] for buffer in (*column.loads, *column.writes)}
    return scope.base + sum(s.bytes for s in scope.storages if s.buffer in touched)


def producers_of(scope: Scope) -> dict[int, set[int]]:
    """By buffer, the ops of the scope that make it."""
    index = topology(scope.instance)
    producers: dict[int, set[int]] = {}
    for op in bits(scope.ops):
        for priced in index.priced[op].values():
            for write in priced.writes:
                producers.setdefault(write[0], set()).add(op)
    return producers
