"""Which op must come before which: values, mutation, and the order of random calls."""

from __future__ import annotations

from dataclasses import dataclass

from optfuse.extract.access import NestAccesses
from optfuse.extract.work import views
from optfuse.ir.nodes import LibraryCall, LoopGraph, LoopNest


@dataclass(frozen=True, slots=True)
class Dependence:
    """``src`` before ``dst``. ``value``: dst reads what src wrote to ``buffer``; else order only (the buffer is the
    one that both touch, or None for side effects).
    """

    src: int
    dst: int
    buffer: str | None
    value: bool


def dependences(graph: LoopGraph, touched: tuple[NestAccesses | None, ...]) -> tuple[Dependence, ...]:
    """Scan the ops in program order, as a processor tracks its registers: last writers and readers since."""
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    found: dict[Dependence, None] = {}
    last_random: int | None = None
    for position, op in enumerate(graph.ops):
        reads, writes = footprint(op, touched[position])
        for buffer in reads:
            if buffer in writer:
                found[Dependence(writer[buffer], position, buffer, value=True)] = None
        for buffer in writes:
            for reader in readers.get(buffer, ()):
                if reader != position:
                    found[Dependence(reader, position, buffer, value=False)] = None
            if buffer in writer and buffer not in reads:
                found[Dependence(writer[buffer], position, buffer, value=False)] = None
        for buffer in reads:
            readers.setdefault(buffer, []).append(position)
        for buffer in writes:
            writer[buffer] = position
            readers[buffer] = []
        if isinstance(op, LibraryCall) and op.random:
            if last_random is not None:
                found[Dependence(last_random, position, None, value=False)] = None
            last_random = position
    return tuple(found)


def footprint(op: LoopNest | LibraryCall, touched: NestAccesses | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Buffers that an op reads and writes, without repeats, in order of appearance."""
    if isinstance(op, LibraryCall):
        reads = dict.fromkeys(view.buffer for view in views(op))
        outputs = [output for output in op.outputs if output is not None]
        return tuple(reads), tuple(dict.fromkeys((*outputs, *op.mutates)))
    assert touched is not None, "a nest has accesses"
    return (
        tuple(dict.fromkeys(a.buffer for a in touched.loads)),
        tuple(dict.fromkeys(a.buffer for a in touched.stores)),
    )
