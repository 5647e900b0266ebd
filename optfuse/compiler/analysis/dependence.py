"""Dependences between ops: by values, by mutation, between calls that draw random numbers, and between collectives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from optfuse.compiler.analysis.access import NestAccesses, accesses
from optfuse.compiler.ir.collectives import communicates
from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph, LoopNest, memory_of, views


@dataclass(frozen=True, slots=True)
class Dependence:
    """``src`` runs before ``dst``. ``value``: dst reads what src wrote to ``buffer``; otherwise the order alone counts,
    and ``buffer`` is the one that both touch, or None for side effects.
    """

    src: int
    dst: int
    buffer: str | None
    value: bool


def dependences(
    graph: LoopGraph, touched: tuple[NestAccesses | None, ...], rivals: Mapping[int, int] | None = None
) -> tuple[Dependence, ...]:
    """All dependences of a graph, from each buffer's last writers and its readers since, in program order.

    Collectives keep their program order, on which all ranks agree, whatever each rank's solver finds.
    ``rivals``: by op of a variant, the op of its other alternative. Exactly one runs, so that both write the same
    buffers without depending on each other.
    """
    writers: dict[str, list[int]] = {}
    readers: dict[str, list[int]] = {}
    found: dict[Dependence, None] = {}
    for position, op in enumerate(graph.ops):
        rival = None if rivals is None else rivals.get(position)
        reads, writes = footprint(op, touched[position])
        for buffer in reads:
            for writer in writers.get(buffer, ()):
                if writer != rival:
                    found[Dependence(writer, position, buffer, value=True)] = None
        for buffer in writes:
            for reader in readers.get(buffer, ()):
                if reader not in (position, rival):
                    found[Dependence(reader, position, buffer, value=False)] = None
            for writer in writers.get(buffer, ()):
                if buffer not in reads and writer != rival:
                    found[Dependence(writer, position, buffer, value=False)] = None
        for buffer in reads:
            readers.setdefault(buffer, []).append(position)
        for buffer in writes:
            writers[buffer] = [writer for writer in writers.get(buffer, ()) if writer == rival] + [position]
            readers[buffer] = [reader for reader in readers.get(buffer, ()) if reader == rival]
    return (*found, *_in_program_order(graph), *_through_shared_memory(graph, touched))


def _in_program_order(graph: LoopGraph) -> Iterator[Dependence]:
    """Dependences between calls that draw random numbers, each and the next, and between collectives."""
    draws = [k for k, op in enumerate(graph.ops) if isinstance(op, LibraryCall) and op.random]
    starts = [k for k, op in enumerate(graph.ops) if communicates(op)]
    for first, then in (*pairwise(draws), *pairwise(starts)):
        yield Dependence(first, then, None, value=False)


def _through_shared_memory(graph: LoopGraph, touched: tuple[NestAccesses | None, ...]) -> Iterator[Dependence]:
    """Dependences between ops that access the same memory by two aliases (``Buffer.base``), of which one writes."""
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    owner = {name: memory_of(buffers, name) for name in buffers if buffers[name].base is not None}
    owner |= {name: name for name in owner.values()}
    before: dict[str, list[tuple[int, str, bool]]] = {}  # by owner: op, name, whether it writes
    for position, op in enumerate(graph.ops):
        reads, writes = footprint(op, touched[position])
        made = set(op.outputs) if isinstance(op, LibraryCall) else set[str]()
        uses = [(name, False) for name in reads] + [(name, True) for name in writes if name not in made]
        for name, writing in uses:
            if name not in owner:
                continue
            earlier = before.setdefault(owner[name], [])
            for other, other_name, wrote in earlier:
                if other != position and other_name != name and (writing or wrote):
                    yield Dependence(other, position, None, value=False)
            earlier.append((position, name, writing))


def footprint(
    op: LoopNest | LibraryCall, touched: NestAccesses | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The buffers that an op reads, and those that it writes. ``touched``: a nest's accesses, if known already."""
    if isinstance(op, LibraryCall):
        reads = dict.fromkeys([*(view.buffer for view in views(op)), *op.holds])
        outputs = [output for output in op.outputs if output is not None]
        return tuple(reads), tuple(dict.fromkeys((*outputs, *op.mutates)))
    found = accesses(op) if touched is None else touched
    return tuple(dict.fromkeys(a.buffer for a in found.loads)), tuple(dict.fromkeys(a.buffer for a in found.stores))


def users(graph: LoopGraph) -> tuple[defaultdict[str, set[int]], defaultdict[str, set[int]]]:
    """By buffer: positions of the ops that read it, and of those that write it or, through an alias, its memory."""
    readers: defaultdict[str, set[int]] = defaultdict(set)
    writers: defaultdict[str, set[int]] = defaultdict(set)
    for position, op in enumerate(graph.ops):
        reads, writes = footprint(op)
        for name in reads:
            readers[name].add(position)
        for name in writes:
            writers[name].add(position)
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    owner = {name: memory_of(buffers, name) for name in buffers if buffers[name].base is not None}
    for name in owner:
        writers[owner[name]] |= writers[name]
    for name in owner:
        writers[name] |= writers[owner[name]]
    return readers, writers
