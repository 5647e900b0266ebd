"""Values that are cheaper to compute again than to keep: every reader computes such a value for itself.

An op that takes one large tensor and makes one at least as large of it (bfloat16 to float32, minus a row of means) need
never be written. Whoever would read what it makes can read what it takes: no more bytes, and one write less. So no
schedule loses by it, whatever else it does, but for arithmetic that hides behind memory. This is decided before the
solver; Inductor's greedy scheduler, too, is handed graphs in which such ops are part of their readers. An op with one
reader stays an op: the solver joins the two at no price. Not so where its readers only look up a few of its elements
(``lookup.py``): no kernel of both computes just those.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

import sympy

from optfuse.extract.access import Access, NestAccesses, accesses, affine, walk
from optfuse.extract.dependence import footprint
from optfuse.extract.lookup import element, looked_up
from optfuse.extract.rounding import HALF
from optfuse.extract.split import rename
from optfuse.extract.work import buffer_bytes, touched_bytes, views
from optfuse.ir.functions import FUNCTIONS
from optfuse.ir.nodes import Buffer, Call, Expr, Iota, LibraryCall, Load, LoopGraph, LoopNest, Op, View, ivar, rvar

#: Values of fewer bytes are left: what they cost is launches, and those are the solver's.
LEAST_BYTES = 1 << 16
#: Operands beside the large one have at most this share of the value's bytes, all together.
SMALL_SHARE = 16
#: Scalar functions that a reader may have to compute again for one value.
MOST_CALLS = 16


@dataclass(frozen=True, slots=True)
class Value:
    """What is found at an address: ``expr`` over i variables, one a dimension of these ``sizes`` and ``strides``."""

    expr: Expr
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


def inline_cheap(graph: LoopGraph) -> LoopGraph:
    """The graph with values computed by each of their readers where that saves bytes. Results are the same."""
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    touched = [accesses(op) if isinstance(op, LoopNest) else None for op in graph.ops]
    readers, writers = _users(graph.ops, touched)
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
        inlined = {} if value is None else {user: _with_value(ops[user], name, value) for user in using}
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


def _users(
    ops: Iterable[Op], touched: Iterable[NestAccesses | None]
) -> tuple[defaultdict[str, set[int]], defaultdict[str, set[int]]]:
    """Positions of the ops that read, and that write, each buffer."""
    readers: defaultdict[str, set[int]] = defaultdict(set)
    writers: defaultdict[str, set[int]] = defaultdict(set)
    for position, (op, found) in enumerate(zip(ops, touched, strict=True)):
        reads, writes = footprint(op, found)
        for name in reads:
            readers[name].add(position)
        for name in writes:
            writers[name].add(position)
    return readers, writers


# --- the value ---------------------------------------------------------------------------------------------------


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
    return _by_address(value, sizes, written)


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


def _by_address(expr: Expr, sizes: tuple[int, ...], written: Access) -> Value | None:
    """The value over as few dimensions as its indices allow, outermost first; None if two points share an address."""
    steps = written.coefficients or ()
    forms = [affine(part.index) for part in walk(expr) if isinstance(part, Load | Iota)]
    groups: list[list[int]] = []
    for k in sorted((k for k, n in enumerate(sizes) if n > 1), key=lambda k: -steps[k]):
        run, last = steps[k] * sizes[k], groups[-1][-1] if groups else None
        if steps[k] < 1 or (last is not None and steps[last] < run):
            return None
        linear = all(
            form is not None and form[0].get(ivar(last or 0), 0) == form[0].get(ivar(k), 0) * sizes[k] for form in forms
        )
        if last is not None and steps[last] == run and linear:
            groups[-1].append(k)
        else:
            groups.append([k])
    if None in forms:
        return None
    variables: dict[sympy.Symbol, sympy.Expr] = {ivar(k): sympy.Integer(0) for k in range(len(sizes))}
    variables |= {ivar(group[-1]): ivar(j) for j, group in enumerate(groups)}
    return Value(
        rename(expr, variables),
        tuple(prod(sizes[k] for k in group) for group in groups),
        tuple(steps[group[-1]] for group in groups),
        written.offset,
    )


# --- its readers -------------------------------------------------------------------------------------------------


def _with_value(op: Op | None, name: str, value: Value) -> LoopNest | None:
    """A reader that computes the value itself; None if some address that it reads is not known."""
    assert isinstance(op, LoopNest), "a library call's operands are held"
    nest = _refined(op, name, value)
    if nest is None:
        return None
    extents = _extents(nest)
    computed: dict[Load, Expr] = {}
    for load in accesses(nest).loads:
        if load.buffer == name and load.load is not None:
            found = _at(load, value, extents)
            if found is None:
                return None
            computed[load.load] = found

    def inlined(expr: Expr) -> Expr:
        if isinstance(expr, Load):
            return computed.get(expr) or replace(expr, indirect=tuple(map(inlined, expr.indirect)))
        return replace(expr, args=tuple(map(inlined, expr.args))) if isinstance(expr, Call) else expr

    return _rewritten(nest, inlined)


def _refined(nest: LoopNest, name: str, value: Value) -> LoopNest | None:
    """A reader's dimensions cut where its loads of the value go from one of the value's dimensions to the next."""
    extents = _extents(nest)
    cuts: dict[sympy.Symbol, set[int]] = {symbol: {1, extent} for symbol, extent in extents.items()}
    for load in accesses(nest).loads:
        if load.buffer != name or load.indirect:
            continue
        form = affine(load.load.index) if load.load is not None and load.exact else None
        if form is None:
            return None
        for symbol, step in form[0].items():
            inside = [stride for stride in value.strides if step < stride < step * extents[symbol]]
            if any(stride % step for stride in inside):
                return None
            cuts[symbol].update(stride // step for stride in inside)
    chains = {symbol: sorted(found) for symbol, found in cuts.items()}
    if any(b % a for chain in chains.values() for a, b in pairwise(chain)):
        return None
    variables: dict[sympy.Symbol, sympy.Expr] = {}
    sizes = _cut([ivar(k) for k in range(len(nest.sizes))], chains, ivar, variables)
    rsizes = _cut([rvar(k) for k in range(len(nest.rsizes))], chains, rvar, variables)
    if len(sizes) == len(nest.sizes) and len(rsizes) == len(nest.rsizes):
        return nest
    stores = tuple(replace(s, index=sympy.expand(sympy.sympify(s.index).xreplace(variables))) for s in nest.stores)
    return _rewritten(replace(nest, sizes=sizes, rsizes=rsizes, stores=stores), lambda expr: rename(expr, variables))


def _cut(
    symbols: Iterable[sympy.Symbol],
    chains: Mapping[sympy.Symbol, list[int]],
    make: Callable[[int], sympy.Symbol],
    variables: dict[sympy.Symbol, sympy.Expr],
) -> tuple[int, ...]:
    """Sizes of the pieces of some dimensions, outermost first; the old variables in the new ones are added."""
    sizes: list[int] = []
    for symbol in symbols:
        pieces = list(pairwise(chains[symbol]))[::-1] or [(1, 1)]
        variables[symbol] = sympy.Add(*(low * make(len(sizes) + k) for k, (low, _) in enumerate(pieces)))
        sizes += [high // low for low, high in pieces]
    return tuple(sizes)


def _extents(nest: LoopNest) -> dict[sympy.Symbol, int]:
    return {ivar(k): int(n) for k, n in enumerate(nest.sizes)} | {rvar(k): int(n) for k, n in enumerate(nest.rsizes)}


def _rewritten(nest: LoopNest, change: Callable[[Expr], Expr]) -> LoopNest:
    return replace(
        nest,
        reductions=tuple(replace(r, operand=change(r.operand)) for r in nest.reductions),
        stores=tuple(replace(s, value=change(s.value)) for s in nest.stores),
    )


def _at(load: Access, value: Value, extents: Mapping[sympy.Symbol, int]) -> Expr | None:
    """What a reader's load finds, computed; None if it is not known at which point of the value that is."""
    if load.indirect:
        dimensions = list(zip(value.sizes, value.strides, strict=True))
        return element(load, value.expr, dimensions, value.offset, extents)
    place = _place(load, value, extents)
    return None if place is None else rename(value.expr, place)


def _place(load: Access, value: Value, extents: Mapping[sympy.Symbol, int]) -> dict[sympy.Symbol, sympy.Expr] | None:
    """The value's variables in those of a reader, for the address that it loads."""
    form = affine(load.load.index) if load.load is not None and load.exact else None
    if form is None or form[1] < value.offset:
        return None
    rest = form[1] - value.offset
    moving = {symbol: step for symbol, step in form[0].items() if step and extents[symbol] > 1}
    found: dict[sympy.Symbol, sympy.Expr] = {}
    for k, (size, stride) in enumerate(zip(value.sizes, value.strides, strict=True)):
        index, rest = sympy.Integer(rest // stride), rest % stride
        last = int(index)
        for symbol in [symbol for symbol, step in moving.items() if step >= stride and step % stride == 0]:
            step = moving.pop(symbol) // stride
            index, last = index + step * symbol, last + step * (extents[symbol] - 1)
        if last >= size:
            return None
        found[ivar(k)] = index
    return None if moving or rest else found
