"""Values that are only moved: padded, cut, rolled, put beside others. Who moves such a value computes it on the way.

The points of a pad or a slice are not those of what it takes, so no kernel can hold both, and what is moved would be
written in order to be read once. If the value has no other reader, which takes each of its elements once at most, the
reader can compute them: a write and a read less, and no arithmetic twice. What it reads instead must not take more:
what is in memory anyway counts once, and what a kernel might have kept in registers twice, for the write. Chains are
followed back for as long as that pays: what a half type is rounded from may be twice as wide, and what that was made of
may not. Like ``inline.py``, this is decided before the solver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from optfuse.extract.access import Access, accesses, affine, walk
from optfuse.extract.dependence import users
from optfuse.extract.rounding import HALF
from optfuse.extract.substitute import by_address, extents_of, inside, rewritten, with_value
from optfuse.extract.work import ITEM_BYTES, buffer_bytes, views
from optfuse.ir.functions import FUNCTIONS
from optfuse.ir.nodes import Buffer, Call, Const, Expr, LibraryCall, Load, LoopGraph, LoopNest, Op, View

#: Values of fewer bytes are left: what they cost is launches, and those are the solver's.
LEAST_BYTES = 1 << 16
#: What is read instead of a value may be that share of its bytes more (a number for each channel).
MORE = 16
#: Scalar functions of a reader, with all that it computes on the way.
MOST_CALLS = 64


def inline_moved(graph: LoopGraph) -> LoopGraph:
    """The graph with values that are only moved computed by who moves them. Results are the same."""
    return _Moving(graph).result()


class _Moving:
    def __init__(self, graph: LoopGraph) -> None:
        self.graph = graph
        self.ops: list[Op | None] = list(graph.ops)
        self.buffers = {buffer.name: buffer for buffer in graph.buffers}
        self.readers, self.writers = users(graph.ops)
        #: Buffers that library calls touch, or that somebody else has.
        self.held = {output.buffer for output in graph.outputs if isinstance(output, View)}
        self.held.update(view.buffer for op in graph.ops if isinstance(op, LibraryCall) for view in views(op))
        self.held.update(buffer.name for buffer in graph.buffers if buffer.kind != "temporary")

    def result(self) -> LoopGraph:
        """From the last op to the first: a value that is computed on the way asks for those that it is made of."""
        for position in range(len(self.ops) - 1, -1, -1):
            reader = self.ops[position]
            if isinstance(reader, LoopNest):
                for name in {load.buffer: None for load in accesses(reader).loads}:
                    self._follow(name, position)
        kept = {name for name in self.buffers if not self.writers[name] or self._maker(name) is not None}
        return replace(
            self.graph,
            ops=tuple(op for op in self.ops if op is not None),
            buffers=tuple(buffer for buffer in self.graph.buffers if buffer.name in kept),
        )

    def _maker(self, name: str) -> Op | None:
        return self.ops[max(self.writers[name])] if self.writers[name] else None

    def _follow(self, name: str, position: int) -> None:
        """Let an op compute a value that it moves, as far back as it then reads no more."""
        reader = self.ops[position]
        assert isinstance(reader, LoopNest)
        maker = self._arithmetic(name, {position})
        if maker is None or not moves(reader, self.buffers[name]):
            return
        limit = self._traffic(reader, {name})
        others = {load.buffer for load in accesses(reader).loads} - {name}
        absorbed = [min(self.writers[name])]
        best: LoopNest | None = None
        gone: set[int] = set()
        while maker is not None:
            made = self._computing(reader, name, maker)
            if made is not None and _calls(made) <= MOST_CALLS:
                new = {load.buffer for load in accesses(made).loads} - others
                if self._traffic(made, new) * MORE <= limit * (MORE + 1):
                    best, gone = made, set(absorbed)
            maker = self._earlier(maker, absorbed)
        if best is None:
            return
        self.ops[position] = best
        for maker_position in gone:
            self.ops[maker_position] = None
        for read in {load.buffer for load in accesses(best).loads}:
            self.readers[read] = (self.readers[read] - gone) | {position}

    def _earlier(self, maker: LoopNest, absorbed: list[int]) -> LoopNest | None:
        """A maker computing one of the values that it takes; None if there is none that nobody else reads."""
        for name in {load.buffer: None for load in accesses(maker).loads}:
            before = self._arithmetic(name, set(absorbed))
            made = None if before is None else self._computing(maker, name, before)
            if made is not None:
                absorbed.append(min(self.writers[name]))
                return made
        return None

    def _computing(self, reader: LoopNest, name: str, maker: LoopNest) -> LoopNest | None:
        """The reader with what the maker stores computed in the place of its loads."""
        expr, buffer = maker.stores[0].value, self.buffers[name]
        if expr.dtype != buffer.dtype:
            # as in any kernel, what is handed on in registers is not rounded to a half type, unless the graph says so
            unrounded = _widened(reader, name, expr.dtype) if buffer.dtype in HALF else None
            reader = unrounded or reader
            expr = expr if unrounded else Call("cast", (expr,), buffer.dtype)
        value = by_address(expr, tuple(int(n) for n in maker.sizes), accesses(maker).stores[0])
        return None if value is None else with_value(reader, name, value)

    def _arithmetic(self, name: str, mine: set[int]) -> LoopNest | None:
        """The op that makes a value that only ``mine`` read, if another may do it in its place."""
        buffer, writers = self.buffers[name], self.writers[name]
        if name in self.held or len(writers) != 1 or buffer_bytes(buffer) < LEAST_BYTES or self.readers[name] - mine:
            return None
        maker = self.ops[min(writers)]
        if not isinstance(maker, LoopNest) or len(maker.stores) != 1 or maker.reductions:
            return None
        found = accesses(maker)
        parts = list(walk(maker.stores[0].value))
        random = any(isinstance(part, Call) and FUNCTIONS[part.function].rule == "random" for part in parts)
        overwritten = any(w > min(writers) for load in found.loads for w in self.writers[load.buffer])
        unknown = any(load.coefficients is None or load.indirect for load in found.loads)
        return None if random or overwritten or unknown or not found.stores[0].exact else maker

    def _traffic(self, nest: LoopNest, names: set[str]) -> int:
        """Bytes that a nest takes of some buffers, at most, and that are written for it."""
        items = {name: ITEM_BYTES.get(self.buffers[name].dtype, 8) * (1 if name in self.held else 2) for name in names}
        return sum(_elements(load, nest) * items[load.buffer] for load in _loads(nest, names))


def moves(nest: LoopNest, buffer: Buffer) -> bool:
    """Whether a nest takes each element of a buffer once at most, at points that are not the buffer's."""
    loads = _loads(nest, {buffer.name})
    if any(load.load is None or load.indirect or not _apart(load, nest) for load in loads):
        return False
    size = prod(int(n) for n in buffer.shape)
    elsewhere = prod(extents_of(nest).values()) != size or any(x.guarded or x.coefficients is None for x in loads)
    return elsewhere and sum(_elements(load, nest) for load in loads) <= size


def _loads(nest: LoopNest, names: set[str]) -> list[Access]:
    return [load for load in accesses(nest).loads if load.buffer in names]


def _apart(load: Access, nest: LoopNest) -> bool:
    """Whether no two points of a nest load the same element."""
    found = None if load.load is None else inside(load.load, extents_of(nest))
    form = None if found is None else affine(found.index)
    if found is None or form is None:
        return False
    reach = 0
    for step, n in sorted((form[0].get(symbol, 0), n) for symbol, n in found.extents.items() if n > 1):
        if step <= reach:
            return False
        reach += step * (n - 1)
    return True


def _elements(load: Access, nest: LoopNest) -> int:
    """Distinct elements that a load takes where its guards hold, at most."""
    extents = extents_of(nest)
    found = None if load.load is None or load.indirect else inside(load.load, extents)
    form = None if found is None else affine(found.index)
    if found is None or form is None:
        return prod(extents.values())
    return prod(n for symbol, n in found.extents.items() if form[0].get(symbol, 0))


def _calls(nest: LoopNest) -> int:
    roots: Sequence = (*(r.operand for r in nest.reductions), *(s.value for s in nest.stores))
    return len({part for root in roots for part in walk(root) if isinstance(part, Call) and part.function != "cast"})


def _widened(nest: LoopNest, name: str, dtype: str) -> LoopNest | None:
    """The nest as if a buffer of a half type held ``dtype``; None if it uses it but cast to that."""
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
