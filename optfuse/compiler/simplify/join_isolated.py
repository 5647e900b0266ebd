"""Computations that nothing ties to others run together, where they cost launches and little else.

A kernel holds ops that pass values to each other or read something in common. So each of these would be a kernel by
itself: tiny computations from inputs to outputs (the step counts of batch norms), and what is made of inputs alone and
read by library calls alone (weights brought into a convolution's form). Those of one form become one op, with a store
for each: no schedule loses by it but for the memory of the latter, which there is a limit to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import prod

from optfuse.compiler.analysis.access import accesses
from optfuse.compiler.analysis.dependence import footprint
from optfuse.compiler.analysis.op_work import buffer_bytes
from optfuse.compiler.ir.nodes import LoopGraph, LoopNest, Op, Size, View

#: Points of an op that costs a launch and little else.
MOST_POINTS = 1024
#: So many computations share a kernel, at most: each brings pointers of its own.
MOST_TOGETHER = 128
#: What is prepared for library calls ahead of its time takes so many bytes, at most, in each such op.
MOST_BYTES = 32 << 20


def join_isolated(graph: LoopGraph, most: int = MOST_TOGETHER) -> LoopGraph:
    """The graph with isolated computations, of the same sizes in the same order, as one; ``most`` share a kernel.

    >>> show("join_isolated", lambda x, y: (x + 1, y + 1), single(4), single(4))
    before:
      add: for i0 < 4  # aten.add.Tensor
        add[i0] = tensors_0[i0] + 1.0
      add_1: for i0 < 4  # aten.add.Tensor
        add_1[i0] = tensors_1[i0] + 1.0
    after:
      add: for i0 < 4  # aten.add.Tensor
        add[i0] = tensors_0[i0] + 1.0
        add_1[i0] = tensors_1[i0] + 1.0
    """
    return _join_prepared(_join_tiny(graph, most), most)


def _join_tiny(graph: LoopGraph, most: int) -> LoopGraph:
    devices = {buffer.name: buffer.device for buffer in graph.buffers}
    alike: dict[tuple[object, ...], list[tuple[int, ...]]] = {}
    for members in _components(graph):
        nests = [op for op in (graph.ops[k] for k in members) if isinstance(op, LoopNest)]
        if len(nests) == len(members) and all(map(_is_tiny, nests)):
            form = (devices[nests[0].stores[0].buffer], *(tuple(nest.sizes) for nest in nests))
            alike.setdefault(form, []).append(members)
    # by step: what an op needs is in an earlier step of its own computation
    return _joined(graph, [step for several in alike.values() for step in _steps(several, most)])


def _join_prepared(graph: LoopGraph, most: int) -> LoopGraph:
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    returned = {output.buffer for output in graph.outputs if isinstance(output, View)}
    touched = [footprint(op, accesses(op) if isinstance(op, LoopNest) else None) for op in graph.ops]
    written = {name for _, writes in touched for name in writes}
    looped = {
        name for op, (reads, _) in zip(graph.ops, touched, strict=True) if isinstance(op, LoopNest) for name in reads
    }
    alike: dict[tuple[str, tuple[Size, ...], int], list[tuple[int, ...]]] = {}
    for k, (op, (reads, writes)) in enumerate(zip(graph.ops, touched, strict=True)):
        if not isinstance(op, LoopNest) or op.reductions or len(op.stores) > 1 or written & set(reads):
            continue
        result = buffers[writes[0]]
        if reads and result.kind == "temporary" and result.name not in looped | returned:
            alike.setdefault((result.device, tuple(op.sizes), buffer_bytes(result)), []).append((k,))
    return _joined(
        graph,
        [
            step
            for (_, _, size), several in alike.items()
            for step in _steps(several, max(1, min(most, MOST_BYTES // max(1, size))))
        ],
    )


def _steps(several: list[tuple[int, ...]], most: int) -> Iterator[tuple[int, ...]]:
    """The first ops of some computations of one form, their second ops, and so on; so many computations at a time."""
    for first in range(0, len(several), most):
        yield from zip(*several[first : first + most], strict=True)


def _joined(graph: LoopGraph, groups: Iterable[tuple[int, ...]]) -> LoopGraph:
    """The graph with the nests at some positions as one, where the first of them was."""
    ops: list[Op | None] = list(graph.ops)
    for positions in groups:
        nests = [op for op in (graph.ops[k] for k in positions) if isinstance(op, LoopNest)]
        for k in positions:
            ops[k] = None
        ops[positions[0]] = replace(nests[0], stores=tuple(store for nest in nests for store in nest.stores))
    return replace(graph, ops=tuple(op for op in ops if op is not None))


def _components(graph: LoopGraph) -> Iterable[tuple[int, ...]]:
    """Ops that are tied, however indirectly, by buffers that some op writes; positions, ascending."""
    touched = []
    for op in graph.ops:
        reads, writes = footprint(op, accesses(op) if isinstance(op, LoopNest) else None)
        touched.append((reads, writes))
    written = {name for _, writes in touched for name in writes}
    leader = list(range(len(graph.ops)))

    def find(op: int) -> int:
        while leader[op] != op:
            leader[op] = leader[leader[op]]
            op = leader[op]
        return op

    first: dict[str, int] = {}
    for k, (reads, writes) in enumerate(touched):
        for name in (*reads, *writes):
            if name in written:
                leader[find(k)] = find(first.setdefault(name, k))
    members: dict[int, list[int]] = {}
    for k in range(len(graph.ops)):
        members.setdefault(find(k), []).append(k)
    return [tuple(found) for found in members.values()]


def _is_tiny(nest: LoopNest) -> bool:
    return not nest.reductions and prod(int(size) for size in nest.sizes) <= MOST_POINTS
