"""Inline producers into the ops that only move their values: pad, slice, roll and cat.

A pad or a slice has other points than its input, so no kernel can hold it and its producer, and the value would be
written to be read once. If all consumers of a value only move it, and together read each of its elements at most once,
they can compute it: a write and a read less, and no arithmetic is repeated. They must not read more bytes instead: a
buffer that is in memory anyway counts once, one that a kernel might have kept in registers twice, for its write. Chains
of producers are followed back as long as that holds: the input of a cast to a half type may be twice as wide, and that
one's input narrower again. Like ``inline_cheap``, this is decided before the solver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from operator import itemgetter

from optfuse.compiler.analysis.access import Access, accesses
from optfuse.compiler.analysis.dependence import users
from optfuse.compiler.analysis.op_work import ITEM_BYTES
from optfuse.compiler.ir.dtypes import HALF
from optfuse.compiler.ir.index_expressions import affine
from optfuse.compiler.ir.nodes import Buffer, Call, Const, Expr, LibraryCall, Load, LoopGraph, LoopNest, Op, View, views
from optfuse.compiler.ir.scalar_functions import FREE, FUNCTIONS
from optfuse.compiler.ir.sizes import equal, hint
from optfuse.compiler.ir.traversal import operands, stored, subexpressions
from optfuse.compiler.simplify.substitute import by_address, extents_of, inside, rewritten, with_value

#: The bytes read instead of a value may exceed its own by 1 / MORE (for a number for each channel).
MORE = 16
#: The most scalar functions of a consumer with all that is inlined into it.
MOST_CALLS = 64


def inline_moved(graph: LoopGraph) -> LoopGraph:
    """The graph with producers inlined into the ops that only move their values. Results are the same.

    >>> show("inline_moved", lambda x: pad(x * 2, (0, 256)), single(256, 256))
    before:
      mul: for i0 < 65536  # aten.mul.Tensor
        mul[i0] = tensors_0[i0] * 2.0
      constant_pad_nd: for i0 < 256, i1 < 512  # aten.constant_pad_nd.default
        constant_pad_nd[512*i0 + i1] = (mul[256*i0 + i1] if 0 <= i1 < 256 else 0.0)
    after:
      constant_pad_nd: for i0 < 256, i1 < 512  # aten.constant_pad_nd.default
          constant_pad_nd[512*i0 + i1] = where(index(i1):int32 < 256:int32,
          (tensors_0[256*i0 + i1] if 0 <= i1 < 256 else 0:float32) * 2.0, 0.0)
    """
    return Moving(graph).result()


class Moving:
    """The producers of a graph that the ops which move their values may compute.

    ``more``: the bytes read instead of a value may exceed its own by a share of 1 / ``more``.
    """

    def __init__(self, graph: LoopGraph, more: int = MORE) -> None:
        self.graph = graph
        self.more = more
        self.ops: list[Op | None] = list(graph.ops)
        self.buffers = {buffer.name: buffer for buffer in graph.buffers}
        self.readers, self.writers = users(graph)
        #: Buffers that library calls or the caller see: these must be in memory.
        self.held = {output.buffer for output in graph.outputs if isinstance(output, View)}
        self.held.update(view.buffer for op in graph.ops if isinstance(op, LibraryCall) for view in views(op))
        self.held.update(buffer.name for buffer in graph.buffers if buffer.kind != "temporary")

    def result(self) -> LoopGraph:
        """The rewritten graph. From the last op to the first: the operands of an inlined value may be inlined too."""
        for position in range(len(self.ops) - 1, -1, -1):
            producer = self.ops[position]
            if isinstance(producer, LoopNest) and len(producer.stores) == 1:
                self._follow(producer.stores[0].buffer)
        made = {name for name in self.buffers if any(self.ops[writer] is not None for writer in self.writers[name])}
        return replace(
            self.graph,
            ops=tuple(op for op in self.ops if op is not None),
            buffers=tuple(b for b in self.graph.buffers if b.name in made or not self.writers[b.name]),
        )

    def _follow(self, name: str) -> None:
        """Inline the producers of a value into its consumers."""
        best, gone = self.inlined(name)
        for k, nest in best.items():
            self.ops[k] = nest
            for read in _read(nest):
                self.readers[read] = (self.readers[read] - gone) | {k}
        for position in gone:
            self.ops[position] = None

    def inlined(self, name: str) -> tuple[dict[int, LoopNest], set[int]]:
        """The consumers that compute a value themselves, by position, and the positions of the producers inlined.

        Producers are followed as far back as the consumers then read no more bytes. Nothing, if not even the first may
        be inlined.
        """
        using = {position: self.ops[position] for position in sorted(self.readers[name])}
        readers = {position: op for position, op in using.items() if isinstance(op, LoopNest)}
        producer = self._arithmetic(name, set(readers))
        if producer is None or not self._moved(name, list(readers.values())):
            return {}, set()
        limit = sum(self._traffic(nest, {name}) for nest in readers.values())
        others = {position: _read(nest) - {name} for position, nest in readers.items()}
        absorbed = [min(self.writers[name])]
        best: dict[int, LoopNest] = {}
        gone: set[int] = set()
        while producer is not None:
            made = {k: self._computing(nest, name, producer) for k, nest in readers.items()}
            good = {k: nest for k, nest in made.items() if nest is not None and _calls(nest) <= MOST_CALLS}
            traffic = sum(self._traffic(nest, _read(nest) - others[k]) for k, nest in good.items())
            if len(good) == len(readers) and traffic * self.more <= limit * (self.more + 1):
                best, gone = good, set(absorbed)
            producer = self._earlier(producer, absorbed)
        return best, gone

    def _moved(self, name: str, readers: Sequence[LoopNest]) -> bool:
        """Whether all consumers only move the value, and together read each of its elements at most once."""
        buffer = self.buffers[name]
        taken = sum(_elements(load, nest) for nest in readers for load in _loads(nest, {name}))
        return hint(taken) <= hint(prod(buffer.shape)) and all(moves(nest, buffer) for nest in readers)

    def _earlier(self, producer: LoopNest, absorbed: list[int]) -> LoopNest | None:
        """The producer with one of its own producers inlined; None if each of those has other consumers."""
        for name in {load.buffer: None for load in accesses(producer).loads}:
            before = self._arithmetic(name, set(absorbed))
            made = None if before is None else self._computing(producer, name, before)
            if made is not None:
                absorbed.append(min(self.writers[name]))
                return made
        return None

    def _computing(self, reader: LoopNest, name: str, producer: LoopNest) -> LoopNest | None:
        """The consumer with the producer's value computed in the place of its loads."""
        expr, buffer = producer.stores[0].value, self.buffers[name]
        if expr.dtype != buffer.dtype:
            # as in any kernel, a value in registers is not rounded to a half type, unless the graph has a cast
            unrounded = _widened(reader, name, expr.dtype) if buffer.dtype in HALF else None
            reader = unrounded or reader
            expr = expr if unrounded else Call("cast", (expr,), buffer.dtype)
        value = by_address(expr, producer.sizes, accesses(producer).stores[0])
        return None if value is None else with_value(reader, name, value)

    def _arithmetic(self, name: str, mine: set[int]) -> LoopNest | None:
        """The producer of a value that only ``mine`` read, if it may be inlined."""
        writers = self.writers[name]
        if name in self.held or len(writers) != 1 or self.readers[name] - mine:
            return None
        producer = self.ops[min(writers)]
        if not isinstance(producer, LoopNest) or len(producer.stores) != 1 or not producer.pointwise:
            return None
        found = accesses(producer)
        parts = subexpressions(stored(producer))
        random = any(isinstance(part, Call) and FUNCTIONS[part.function].rule == "random" for part in parts)
        overwritten = any(w > min(writers) for load in found.loads for w in self.writers[load.buffer])
        unknown = any(load.coefficients is None or load.indirect for load in found.loads)
        return None if random or overwritten or unknown or not found.stores[0].exact else producer

    def _traffic(self, nest: LoopNest, names: set[str]) -> int:
        """An upper bound of the bytes that a nest reads of some buffers, and that are written for it to read."""
        items = {name: ITEM_BYTES.get(self.buffers[name].dtype, 8) * (1 if name in self.held else 2) for name in names}
        return sum(hint(_elements(load, nest)) * items[load.buffer] for load in _loads(nest, names))


def moves(nest: LoopNest, buffer: Buffer) -> bool:
    """Whether a nest reads a buffer at other points than the buffer's own, and no element at two points."""
    loads = _loads(nest, {buffer.name})
    if any(load.load is None or load.indirect or not _apart(load, nest) for load in loads):
        return False
    points = prod(extents_of(nest).values())
    return not equal(points, prod(buffer.shape)) or any(x.guarded or x.coefficients is None for x in loads)


def _read(nest: LoopNest) -> set[str]:
    return {load.buffer for load in accesses(nest).loads}


def _loads(nest: LoopNest, names: set[str]) -> list[Access]:
    return [load for load in accesses(nest).loads if load.buffer in names]


def _apart(load: Access, nest: LoopNest) -> bool:
    """Whether no two points of a nest load the same element."""
    found = None if load.load is None else inside(load.load, extents_of(nest))
    form = None if found is None else affine(found.index)
    if found is None or form is None:
        return False
    reach = 0
    steps = ((form[0].get(symbol, 0), n) for symbol, n in found.extents.items() if n > 1)
    for step, n in sorted(steps, key=itemgetter(0)):
        if step <= reach:
            return False
        reach += step * (n - 1)
    return True


def _elements(load: Access, nest: LoopNest) -> int:
    """An upper bound of the distinct elements that a load reads where its guards hold."""
    extents = extents_of(nest)
    found = None if load.load is None or load.indirect else inside(load.load, extents)
    form = None if found is None else affine(found.index)
    if found is None or form is None:
        return prod(extents.values())
    return prod(n for symbol, n in found.extents.items() if form[0].get(symbol, 0))


def _calls(nest: LoopNest) -> int:
    parts = subexpressions(operands(nest) + stored(nest))
    return len({part for part in parts if isinstance(part, Call) and part.function not in FREE})


def _widened(nest: LoopNest, name: str, dtype: str) -> LoopNest | None:
    """The nest with each cast to ``dtype`` of a load of the buffer replaced by the load; None if it loads it uncast."""
    bare = False

    def wide(expr: Expr) -> Expr:
        nonlocal bare
        if isinstance(expr, Load):
            bare = bare or expr.buffer == name
        if not isinstance(expr, Call):
            return expr
        load = expr.args[0]
        if expr.function == "cast" and expr.dtype == dtype and isinstance(load, Load) and load.buffer == name:
            return replace(load, dtype=dtype, other=load.other and Const(load.other.value, dtype))
        return replace(expr, args=tuple(map(wide, expr.args)))

    made = rewritten(nest, wide)
    return None if bare else made
