"""Values that are cheaper to compute again than to keep: every reader computes such a value for itself.

An op that takes one large tensor and makes one at least as large of it (bfloat16 to float32, minus a row of means) need
never be written. Whoever would read what it makes can read what it takes: no more bytes, and one write less. So no
schedule loses by it, whatever else it does, but for arithmetic that hides behind memory. This is decided before the
solver; Inductor's greedy scheduler, too, is handed graphs in which such ops are part of their readers. An op with one
reader stays an op: the solver joins the two at no price. Not so where its readers only look up a few of its elements
(``lookup.py``): no kernel of both computes just those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from optfuse.compiler.analysis.access import NestAccesses, accesses, walk
from optfuse.compiler.analysis.dependence import users
from optfuse.compiler.analysis.work import buffer_bytes, touched_bytes
from optfuse.compiler.ir.dtypes import HALF
from optfuse.compiler.ir.functions import FUNCTIONS
from optfuse.compiler.ir.nodes import Buffer, Call, LibraryCall, LoopGraph, LoopNest, Op, View, views
from optfuse.compiler.simplify.lookup import looked_up
from optfuse.compiler.simplify.substitute import Value, by_address, with_value

#: Values of fewer bytes are left: what they cost is launches, and those are the solver's.
LEAST_BYTES = 1 << 16
#: Operands beside the large one have at most this share of the value's bytes, all together.
SMALL_SHARE = 16
#: Scalar functions that a reader may have to compute again for one value.
MOST_CALLS = 16


def inline_cheap(graph: LoopGraph) -> LoopGraph:
    """The graph with values computed by each of their readers where that saves bytes. Results are the same.

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
    # from the last to the first: a value that is computed again asks for those that it is made of
    for position in range(len(ops) - 1, -1, -1):
        op = ops[position]
        if not isinstance(op, LoopNest) or len(op.stores) != 1:
            continue
        name, using = op.stores[0].buffer, readers[op.stores[0].buffer]
        if name in held or not using or len(writers[name]) > 1:
            continue
        few = all(looked_up(ops[user], name, prod(int(n) for n in op.sizes)) for user in using)  # type: ignore[arg-type]
        if len(using) < 2 and not few:
            continue
        value = cheap_value(op, buffers, few=few)
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


def cheap_value(nest: LoopNest, buffers: Mapping[str, Buffer], *, few: bool = False) -> Value | None:
    """What a nest with one store makes, if computing it again reads no more bytes than it has; None if it may.

    ``few``: only few of its elements are asked for, so that what one of them takes does not matter.
    """
    store, found = nest.stores[0], accesses(nest)
    buffer = buffers[store.buffer]
    size = buffer_bytes(buffer)
    # a half type is rounded where it is stored, and nowhere else: readers would see more digits
    if nest.reductions or buffer.kind != "temporary" or (buffer.dtype in HALF and not few) or size < LEAST_BYTES:
        return None
    calls = {expr for expr in walk(store.value) if isinstance(expr, Call) and expr.function != "cast"}
    functions = [FUNCTIONS[expr.function] for expr in calls]
    costly = any(function.special for function in functions) and not few
    if len(calls) > MOST_CALLS or costly or any(function.rule == "random" for function in functions):
        return None
    sizes = tuple(int(s) for s in nest.sizes)
    written = found.stores[0]
    if (
        not written.exact
        or not all(load.exact for load in found.loads)
        or not (few or _reads_little(found, sizes, size, buffers))
    ):
        return None
    value = store.value if store.value.dtype == buffer.dtype else Call("cast", (store.value,), buffer.dtype)
    return by_address(value, sizes, written)


def _reads_little(found: NestAccesses, sizes: tuple[int, ...], size: int, buffers: Mapping[str, Buffer]) -> bool:
    """Whether all loads but one are small, and that one takes no more bytes than the value has, as contiguous.

    It stays what the readers have in common: without it they might not be linked, and no kernel could hold them.
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
