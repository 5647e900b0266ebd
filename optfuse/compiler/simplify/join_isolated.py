"""Join small computations that share no value with others into one op, since they cost little more than launches.

A kernel holds ops that pass values to each other or have a read in common. So each of these would be a kernel of its
own: tiny computations from inputs to outputs (the step counts of batch norms), and ops that read only inputs and whose
results only library calls read (weights in a convolution's layout). Those of equal sizes become one op with a store
each. No schedule loses, except for the memory of the latter results, which is limited here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import prod

from optfuse.compiler.analysis.dependence import footprint
from optfuse.compiler.analysis.op_work import buffer_bytes
from optfuse.compiler.ir.nodes import LoopGraph, LoopNest, Op, View
from optfuse.compiler.ir.sizes import never_less

#: The most points of an op that costs little more than a launch.
MOST_POINTS = 1024
#: The most ops of a tiny computation where kernels may share launches: longer ones are faster in programs of their own.
MOST_OPS = 4
#: The most computations of one kernel: each adds pointers of its own.
MOST_TOGETHER = 128
#: The most bytes of one joined op's results that wait for library calls.
MOST_BYTES = 32 << 20


def join_isolated(graph: LoopGraph, most: int = MOST_TOGETHER, longest: int | None = None) -> LoopGraph:
    """The graph with isolated computations of the same sizes joined, at most ``most`` into one op.

    ``longest``: the most ops of a computation that is joined to others; None: any number.

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
    return _join_prepared(_join_tiny(graph, most, longest), most)


def _join_tiny(graph: LoopGraph, most: int, longest: int | None) -> LoopGraph:
    devices = {buffer.name: buffer.device for buffer in graph.buffers}
    alike: dict[tuple[object, ...], list[tuple[int, ...]]] = {}
    for members in _components(graph):
        nests = [op for op in (graph.ops[k] for k in members) if isinstance(op, LoopNest)]
        short = longest is None or len(nests) <= longest
        if short and len(nests) == len(members) and all(map(_is_tiny, nests)):
            form = (devices[nests[0].stores[0].buffer], *(tuple(nest.sizes) for nest in nests))
            alike.setdefault(form, []).append(members)
    # step by step: the producers of an op are in an earlier step of its own computation
    return _joined(graph, [step for several in alike.values() for step in _steps(several, most)])


def _join_prepared(graph: LoopGraph, most: int) -> LoopGraph:
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    returned = {output.buffer for output in graph.outputs if isinstance(output, View)}
    touched = [footprint(op) for op in graph.ops]
    written = {name for _, writes in touched for name in writes}
    looped = {
        name for op, (reads, _) in zip(graph.ops, touched, strict=True) if isinstance(op, LoopNest) for name in reads
    }
    alike: dict[tuple[str, tuple[int, ...], int], list[tuple[int, ...]]] = {}
    for k, (op, (reads, writes)) in enumerate(zip(graph.ops, touched, strict=True)):
        if not isinstance(op, LoopNest) or not op.pointwise or len(op.stores) > 1 or written & set(reads):
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
    """The first ops of up to ``most`` computations of one form, their second ops, and so on."""
    for first in range(0, len(several), most):
        yield from zip(*several[first : first + most], strict=True)


def _joined(graph: LoopGraph, groups: Iterable[tuple[int, ...]]) -> LoopGraph:
    """The graph with each group of nests joined into one, in the place of the first of them."""
    ops: list[Op | None] = list(graph.ops)
    for positions in groups:
        nests = [op for op in (graph.ops[k] for k in positions) if isinstance(op, LoopNest)]
        for k in positions:
            ops[k] = None
        ops[positions[0]] = replace(nests[0], stores=tuple(store for nest in nests for store in nest.stores))
    return replace(graph, ops=tuple(op for op in ops if op is not None))


def _components(graph: LoopGraph) -> Iterable[tuple[int, ...]]:
    """The connected components of the ops, over the buffers that some op writes: positions, ascending."""
    touched = [footprint(op) for op in graph.ops]
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
    return nest.pointwise and never_less(MOST_POINTS, prod(nest.sizes))
