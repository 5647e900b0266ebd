"""Join the second stages of split reductions whose results only leave the graph (gradients of weights and biases).

Each reads partial sums that no other op reads, and its result is read at most by ops that convert it and whose results
leave the graph. Several of the same sizes become one op, in the place of the last of them.

Dominance: without a cap on memory, and with room for the ops in a kernel, an optimal schedule survives. Take an optimal
schedule of the graph before. A second stage has no walk in common with its first stage, which has more points, and no
input in common with any other op; the ops that convert its result read nothing else. So a kernel of these ops holds
only a second stage and its conversions. Put the joined op and all conversions of its results into one kernel, in the
place of the last of those kernels: no other op reads its results, so there is no cycle. It reads and writes no more
bytes than they did together, in the same walk, since ``split`` lays out partial sums of the same sizes alike; its
arithmetic is theirs; the maximum of two sums is at most the sum of the maxima; and launches are saved. Under a cap on
memory it may lose, since the partial sums of all are live at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from optfuse.compiler.analysis.access import accesses
from optfuse.compiler.analysis.dependence import users as buffer_users
from optfuse.compiler.analysis.op_work import buffer_bytes
from optfuse.compiler.ir.nodes import Buffer, Expr, LoopGraph, LoopNest, Op, Result
from optfuse.compiler.simplify.expressions import with_results

#: The most second stages of one op: they run one after the other in few programs.
MOST_TOGETHER = 16
#: The most bytes that a joined second stage reads: of larger ones launches are a small share.
MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Users:
    """By buffer: positions of its readers and of its writers, and the buffer itself."""

    readers: Mapping[str, set[int]]
    writers: Mapping[str, set[int]]
    buffers: Mapping[str, Buffer]


def join_leaves(graph: LoopGraph, most: int = MOST_TOGETHER) -> LoopGraph:
    """The graph with second stages of the same sizes that only leave it joined, at most ``most`` into one op.

    >>> show("join_leaves", lambda x, y: (x.sum(0), y.sum(0)), single(16384, 64), single(16384, 64))
    before:
      sum_1_partial: for i0 < 256, i1 < 64  # aten.sum.dim_IntList
        s0 = sum of tensors_0[4096*i0 + i1 + 64*r0] for r0 < 64
        sum_1_partial0[64*i0 + i1] = s0
      sum_1: for i0 < 64  # aten.sum.dim_IntList
        s0 = sum of sum_1_partial0[i0 + 64*r0] for r0 < 256
        sum_1[i0] = s0
      sum_2_partial: for i0 < 256, i1 < 64  # aten.sum.dim_IntList
        s0 = sum of tensors_1[4096*i0 + i1 + 64*r0] for r0 < 64
        sum_2_partial0[64*i0 + i1] = s0
      sum_2: for i0 < 64  # aten.sum.dim_IntList
        s0 = sum of sum_2_partial0[i0 + 64*r0] for r0 < 256
        sum_2[i0] = s0
    after:
      sum_1_partial: for i0 < 256, i1 < 64  # aten.sum.dim_IntList
        s0 = sum of tensors_0[4096*i0 + i1 + 64*r0] for r0 < 64
        sum_1_partial0[64*i0 + i1] = s0
      sum_2_partial: for i0 < 256, i1 < 64  # aten.sum.dim_IntList
        s0 = sum of tensors_1[4096*i0 + i1 + 64*r0] for r0 < 64
        sum_2_partial0[64*i0 + i1] = s0
      sum_1: for i0 < 64  # aten.sum.dim_IntList
        s0 = sum of sum_1_partial0[i0 + 64*r0] for r0 < 256
        s1 = sum of sum_2_partial0[i0 + 64*r0] for r0 < 256
        sum_1[i0] = s0
        sum_2[i0] = s1
    """
    users = _Users(*buffer_users(graph), {buffer.name: buffer for buffer in graph.buffers})
    alike: dict[tuple[str, tuple[int, ...], tuple[int, ...]], list[tuple[int, ...]]] = {}
    for k, op in enumerate(graph.ops):
        after = _after(graph, k, users) if isinstance(op, LoopNest) else None
        if isinstance(op, LoopNest) and after is not None:
            device = users.buffers[op.stores[0].buffer].device
            alike.setdefault((device, tuple(op.sizes), tuple(op.rsizes)), []).append((k, *after))
    places: dict[int, list[Op]] = {k: [op] for k, op in enumerate(graph.ops)}
    for several in alike.values():
        for first in range(0, len(several), most):
            together = several[first : first + most]
            nests = [op for op in (graph.ops[k] for k, *_ in together) if isinstance(op, LoopNest)]
            rest = [graph.ops[j] for _, *after in together for j in after]
            for members in together:
                places |= {k: [] for k in members}
            places[together[-1][0]] = [_joined(nests), *rest]
    return replace(graph, ops=tuple(op for k in range(len(graph.ops)) for op in places[k]))


def _after(graph: LoopGraph, k: int, users: _Users) -> tuple[int, ...] | None:
    """The ops that convert results of op ``k``, if it is a second stage whose results leave the graph; else None."""
    nest = graph.ops[k]
    assert isinstance(nest, LoopNest), "only loops are split"
    loaded = {load.buffer for load in accesses(nest).loads}
    if not nest.reductions or any(reduction.kind != "sum" for reduction in nest.reductions):
        return None
    if sum(buffer_bytes(users.buffers[name]) for name in loaded) > MOST_BYTES:
        return None
    for name in loaded:
        writer = graph.ops[min(users.writers[name])] if len(users.writers[name]) == 1 else None
        if not isinstance(writer, LoopNest) or not writer.reductions:
            return None
        if writer.origin.node != nest.origin.node or users.readers[name] != {k}:
            return None
    made = {store.buffer for store in nest.stores}
    after = sorted({j for name in made for j in users.readers[name]})
    return tuple(after) if all(_converts(graph.ops[j], nest, made, users) for j in after) else None


def _converts(op: Op, nest: LoopNest, made: set[str], users: _Users) -> bool:
    """Whether an op has the same points, reads nothing but ``made``, and its results are read by no op."""
    if not isinstance(op, LoopNest) or not op.pointwise or op.sizes != nest.sizes:
        return False
    stored = [users.buffers[store.buffer] for store in op.stores]
    left = all(buffer.kind == "temporary" and not users.readers[buffer.name] for buffer in stored)
    return left and {load.buffer for load in accesses(op).loads} <= made


def _joined(nests: Sequence[LoopNest]) -> LoopNest:
    """Nests over the same points joined into one, with their results renumbered."""
    stores, before = [], 0
    for nest in nests:
        shifted: dict[int, Expr] = {
            k: Result(before + k, reduction.operand.dtype) for k, reduction in enumerate(nest.reductions)
        }
        stores += [replace(store, value=with_results(store.value, shifted)) for store in nest.stores]
        before += len(nest.reductions)
    reductions = tuple(reduction for nest in nests for reduction in nest.reductions)
    return replace(nests[0], reductions=reductions, stores=tuple(stores))
