"""Inline values that are cheaper to recompute than to store: every consumer computes such a value for itself.

The result of an op that reads one large tensor and produces one at least as large (bfloat16 to float32, minus a row of
means) need never be written. Its consumers can read the op's input instead of its result: no more bytes, and one write
less. So no schedule loses, except for arithmetic that memory hides. This is decided before the solver; Inductor's
greedy scheduler is given graphs in which such ops are inlined as well. An op with one consumer stays an op: the solver
fuses the two for free. Where the consumers only gather a few of its elements (``gathered_values``) it is inlined
nevertheless: no fused kernel computes just those.

Exponentials and the like cost arithmetic that memory may not hide. They are inlined where no kernel can hold all
consumers, for one follows from another through a library call: writing and reading the value takes longer. So a gate
that a backward graph computes again for a product, and for its own gradient after that product, is not stored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import prod

from optfuse.compiler.analysis.access import NestAccesses, accesses
from optfuse.compiler.analysis.dependence import footprint, users
from optfuse.compiler.analysis.op_work import SPECIAL_WEIGHT, buffer_bytes, touched_bytes
from optfuse.compiler.ir.dtypes import HALF
from optfuse.compiler.ir.nodes import Buffer, Call, LibraryCall, LoopGraph, LoopNest, Op, View, views
from optfuse.compiler.ir.scalar_functions import FREE, FUNCTIONS
from optfuse.compiler.ir.traversal import subexpressions
from optfuse.compiler.simplify.gathered_values import is_sparse_gather
from optfuse.compiler.simplify.substitute import Value, by_address, with_value

#: Values of fewer bytes are not inlined: they cost launches, on which the solver decides.
LEAST_BYTES = 1 << 12
#: Positions (whole numbers that are computed from nothing) of so many consumers are inlined: they would tie together
#: what is independent otherwise (the tables of a recommender), and blocks of hundreds of ops are not proven.
MANY = 8
#: The most consumers of a value with special functions.
MOST_APART = 4
#: The operands beside the large one have together at most 1 / SMALL_SHARE of the value's bytes.
SMALL_SHARE = 16
#: The most special functions, each by its weight (``SPECIAL_WEIGHT``), that consumers which no kernel holds recompute.
MOST_SPECIAL = 5
#: The most scalar functions that a consumer recomputes for one value.
MOST_CALLS = 16


def inline_cheap(graph: LoopGraph) -> LoopGraph:
    """The graph with values recomputed by each of their consumers where that saves bytes. Results are the same.

    >>> show("inline_cheap", lambda x: (x.float().sum(0), x.float().sum(1)), half(256, 256))
    before:
      _to_copy: for i0 < 65536  # aten._to_copy.default
        _to_copy[i0] = float32(tensors_0[i0])
      sum_1: for i0 < 256  # aten.sum.dim_IntList
        s0 = sum of _to_copy[i0 + 256*r0] for r0 < 256
        sum_1[i0] = s0
      sum_2: for i0 < 256  # aten.sum.dim_IntList
        s0 = sum of _to_copy[256*i0 + r0] for r0 < 256
        sum_2[i0] = s0
    after:
      sum_1: for i0 < 256  # aten.sum.dim_IntList
        s0 = sum of float32(tensors_0[i0 + 256*r0]) for r0 < 256
        sum_1[i0] = s0
      sum_2: for i0 < 256  # aten.sum.dim_IntList
        s0 = sum of float32(tensors_0[256*i0 + r0]) for r0 < 256
        sum_2[i0] = s0
    """
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    readers, writers = users(graph)
    held = {output.buffer for output in graph.outputs if isinstance(output, View)}
    held.update(view.buffer for op in graph.ops if isinstance(op, LibraryCall) for view in views(op))
    ops: list[Op | None] = list(graph.ops)
    gone: set[str] = set()
    # from the last op to the first: an inlined value needs its own operands, which may be inlined in turn
    for position in range(len(ops) - 1, -1, -1):
        op = ops[position]
        if not isinstance(op, LoopNest) or len(op.stores) != 1:
            continue
        name, using = op.stores[0].buffer, readers[op.stores[0].buffer]
        if name in held or not using or len(writers[name]) > 1:
            continue
        few = all(is_sparse_gather(ops[user], name, prod(op.sizes)) for user in using)
        if len(using) < 2 and not few:
            continue
        special = len(using) <= MOST_APART and _are_apart(ops, readers, using)
        value = cheap_value(op, buffers, few=few, many=len(using) >= MANY, special=special)
        inlined = {} if value is None else {user: _computing(ops[user], name, value) for user in using}
        read = {load.buffer for load in accesses(op).loads}
        if not inlined or None in inlined.values() or any(w > position for r in read for w in writers[r]):
            continue
        for user, nest in inlined.items():
            ops[user] = nest
        for buffer in read:
            readers[buffer] = (readers[buffer] | using) - {position}
        ops[position] = None
        gone.add(name)
    return replace(
        graph,
        ops=tuple(op for op in ops if op is not None),
        buffers=tuple(buffer for buffer in graph.buffers if buffer.name not in gone),
    )


def _computing(reader: Op | None, name: str, value: Value) -> LoopNest | None:
    assert isinstance(reader, LoopNest), "a library call's operands are held"
    return with_value(reader, name, value)


def _are_apart(ops: Sequence[Op | None], readers: Mapping[str, set[int]], using: Collection[int]) -> bool:
    """Whether consumers are pointwise, and one of them follows from another one through a library call."""
    if not all(isinstance(op := ops[user], LoopNest) and op.pointwise for user in using):
        return False
    reached: dict[int, bool] = {}  # positions that follow from a consumer: whether through a library call
    for position in range(min(using), max(using) + 1):
        op = ops[position]
        if op is None or not (position in using or position in reached):
            continue
        if position in using and reached.get(position):
            return True
        through = reached.get(position, False) or isinstance(op, LibraryCall)
        for name in footprint(op)[1]:
            for user in readers.get(name, ()):
                reached[user] = reached.get(user, False) or through
    return False


def cheap_value(
    nest: LoopNest,
    buffers: Mapping[str, Buffer],
    *,
    few: bool = False,
    many: bool = False,
    special: bool = False,
) -> Value | None:
    """The value of a nest with one store, if recomputing it reads no more bytes than it has; otherwise None.

    ``few``: its consumers gather few of its elements, so that the cost of one of them does not matter. ``many``: it has
    ``MANY`` consumers or more. ``special``: it may have a few special functions.
    """
    store, found = nest.stores[0], accesses(nest)
    buffer = buffers[store.buffer]
    size = buffer_bytes(buffer)
    # a half type is rounded at its store: inlined, consumers would see the unrounded value
    if not nest.pointwise or buffer.kind != "temporary" or (buffer.dtype in HALF and not few) or size < LEAST_BYTES:
        return None
    calls = {expr for expr in subexpressions([store.value]) if isinstance(expr, Call) and expr.function not in FREE}
    functions = [FUNCTIONS[expr.function] for expr in calls]
    weight = sum(SPECIAL_WEIGHT.get(expr.function, 1) for expr in calls if FUNCTIONS[expr.function].special)
    costly = weight > (MOST_SPECIAL if special else 0) and not few
    if len(calls) > MOST_CALLS or costly or any(function.rule == "random" for function in functions):
        return None
    written = found.stores[0]
    if (
        not written.exact
        or not all(load.exact for load in found.loads)
        or not (few or (many and _is_position(found, buffer)) or _reads_little(found, nest.sizes, size, buffers))
    ):
        return None
    value = store.value if store.value.dtype == buffer.dtype else Call("cast", (store.value,), buffer.dtype)
    return by_address(value, nest.sizes, written)


def _is_position(found: NestAccesses, buffer: Buffer) -> bool:
    """Whether a value is whole numbers that are computed from nothing."""
    return not found.loads and buffer.dtype in ("int32", "int64")


def _reads_little(found: NestAccesses, sizes: tuple[int, ...], size: int, buffers: Mapping[str, Buffer]) -> bool:
    """Whether all loads but one are small, and that one is contiguous and reads no more bytes than the value has.

    The consumers then share that read, as they shared the value: with nothing in common no kernel could hold them.
    """
    read = [(load, touched_bytes(load, sizes, buffers[load.buffer])) for load in found.loads]
    large = [load for load, moved in read if moved * SMALL_SHARE > size]
    small = sum(moved for load, moved in read if load not in large)
    if len(large) != 1 or small * SMALL_SHARE > size:
        return False
    source, steps = buffers[large[0].buffer], large[0].coefficients or ()
    moved = touched_bytes(large[0], sizes, source)
    lasting = source.kind == "temporary" and buffer_bytes(source) > size
    inner = [k for k, step in enumerate(found.stores[0].coefficients or ()) if step == 1 and sizes[k] > 1]
    return moved <= size and not lasting and all(steps[k] == 1 for k in inner)
