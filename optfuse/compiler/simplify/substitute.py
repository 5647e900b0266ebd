"""A reader that computes for itself what it would have read.

A value is known by address: an expression over as few dimensions as its indices allow. A load of it says which point of
those dimensions it wants, and the expression at that point takes the load's place. Guards of the load go along: outside
of them the reader sees what the load would have yielded, and nothing is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

import sympy

from optfuse.compiler.analysis.access import Access, accesses, affine, walk
from optfuse.compiler.ir.dtypes import FLOATING, NARROW
from optfuse.compiler.ir.nodes import Call, Const, Expr, Guard, Iota, Load, LoopNest, ivar, rvar
from optfuse.compiler.simplify.lookup import element
from optfuse.compiler.simplify.split import rename


@dataclass(frozen=True, slots=True)
class Value:
    """What is found at an address: ``expr`` over i variables, one a dimension of these ``sizes`` and ``strides``."""

    expr: Expr
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


def by_address(expr: Expr, sizes: tuple[int, ...], written: Access) -> Value | None:
    """The value over as few dimensions as its indices allow, outermost first; None if two points share an address."""
    steps = written.coefficients or ()
    parts = [part for part in walk(expr) if isinstance(part, Load | Iota)]
    indices = [part.index for part in parts]
    indices += [guard.expr for part in parts if isinstance(part, Load) for guard in part.guards]
    forms = [affine(sympy.sympify(index)) for index in indices]
    if None in forms:
        return None
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
    variables: dict[sympy.Symbol, sympy.Expr] = {ivar(k): sympy.Integer(0) for k in range(len(sizes))}
    variables |= {ivar(group[-1]): ivar(j) for j, group in enumerate(groups)}
    return Value(
        rename(expr, variables),
        tuple(prod(sizes[k] for k in group) for group in groups),
        tuple(steps[group[-1]] for group in groups),
        written.offset,
    )


def with_value(nest: LoopNest, name: str, value: Value) -> LoopNest | None:
    """A reader of ``name`` that computes the value itself; None if some address that it reads is not known."""
    refined = _refined(nest, name, value)
    if refined is None:
        return None
    extents = extents_of(refined)
    computed: dict[Load, Expr] = {}
    for load in accesses(refined).loads:
        if load.buffer == name and load.load is not None:
            found = _at(load, value, extents)
            if found is None:
                return None
            computed[load.load] = found

    def inlined(expr: Expr) -> Expr:
        if isinstance(expr, Load):
            return computed.get(expr) or replace(expr, indirect=tuple(map(inlined, expr.indirect)))
        return replace(expr, args=tuple(map(inlined, expr.args))) if isinstance(expr, Call) else expr

    return rewritten(refined, inlined)


def extents_of(nest: LoopNest) -> dict[sympy.Symbol, int]:
    """The number of values of each variable of a nest."""
    return {ivar(k): int(n) for k, n in enumerate(nest.sizes)} | {rvar(k): int(n) for k, n in enumerate(nest.rsizes)}


# --- guards ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inside:
    """Where a load's guards hold: its index, the extents of its variables, and what each is in the nest's variables.

    A guarded variable counts from its guard's 0, and one that goes round (``(i + 3) % n``) from where that yields 0.
    """

    index: sympy.Expr
    extents: dict[sympy.Symbol, int]
    meant: dict[sympy.Symbol, sympy.Expr]


def inside(load: Load, extents: Mapping[sympy.Symbol, int]) -> Inside | None:
    """A load as its guards see it; None unless each bounds one variable, from 0 on, and no two the same."""
    index, bounded = sympy.sympify(load.index), dict(extents)
    meant: dict[sympy.Symbol, sympy.Expr] = {}
    for guard in load.guards:
        symbol, shift = _shift(guard.expr) or (None, 0)
        if symbol is None or symbol in meant or int(guard.lower) < 0:
            return None
        index = index.xreplace({symbol: symbol - shift})
        bounded[symbol] = min(int(guard.upper), extents[symbol] + shift)
        meant[symbol] = symbol + shift
    for turn in index.atoms(sympy.Mod):
        symbol, _ = _shift(turn.args[0]) or (None, 0)
        apart = index.xreplace({turn: sympy.Integer(0)})
        if symbol is None or symbol in meant or apart.has(symbol) or turn.args[1] != extents[symbol]:
            return None
        index = index.xreplace({turn: symbol})
        meant[symbol] = turn
    return Inside(sympy.expand(index), bounded, meant)


def _shift(expr: sympy.Expr) -> tuple[sympy.Symbol, int] | None:
    """The variable and the number of a sum of one each."""
    form = affine(sympy.sympify(expr))
    return (*form[0], form[1]) if form is not None and list(form[0].values()) == [1] else None


def _within(load: Load, expr: Expr, extents: Mapping[sympy.Symbol, int]) -> Expr:
    """``expr`` where the load's guards hold, what the load yields elsewhere; loads that the guards bound have them."""
    if not load.guards or load.other is None:
        return expr
    held: Expr | None = None
    for guard in load.guards:
        symbol, shift = _shift(guard.expr) or (ivar(0), 0)
        position = Iota(sympy.sympify(guard.expr), "int32")
        for function, limit, needed in (
            ("ge", guard.lower, shift < guard.lower),
            ("lt", guard.upper, extents[symbol] + shift > guard.upper),
        ):
            if needed:
                bound = Call(function, (position, Const(int(limit), "int32")), "bool")
                held = bound if held is None else Call("bitwise_and", (held, bound), "bool")
    expr = _guarded(expr, load.guards)
    return expr if held is None else _chosen(held, expr, load.other)


def _chosen(held: Expr, expr: Expr, other: Const) -> Expr:
    """``expr`` where it is held, else ``other``; of narrow types, what was rounded is chosen, or else float32."""
    wide = expr
    if expr.dtype in NARROW:
        rounded = isinstance(expr, Call) and expr.function == "cast" and expr.args[0].dtype in FLOATING - NARROW
        wide = expr.args[0] if isinstance(expr, Call) and rounded else Call("cast", (expr,), "float32")
    made = Call("where", (held, wide, Const(other.value, wide.dtype)), wide.dtype)
    return made if wide is expr else Call("cast", (made,), expr.dtype)


def _guarded(expr: Expr, guards: tuple[Guard, ...]) -> Expr:
    """The expression with each load under those of the guards whose variables move it."""
    if isinstance(expr, Call):
        return replace(expr, args=tuple(_guarded(arg, guards) for arg in expr.args))
    if not isinstance(expr, Load):
        return expr
    bounding = tuple(
        guard for guard in guards if sympy.sympify(guard.expr).free_symbols & sympy.sympify(expr.index).free_symbols
    )
    if not bounding:
        return expr
    return replace(expr, guards=(*expr.guards, *bounding), other=expr.other or Const(0, expr.dtype))


# --- places ------------------------------------------------------------------------------------------------------


def _refined(nest: LoopNest, name: str, value: Value) -> LoopNest | None:
    """A reader's dimensions cut where its loads of the value go from one of the value's dimensions to the next."""
    extents = extents_of(nest)
    cuts: dict[sympy.Symbol, set[int]] = {symbol: {1, extent} for symbol, extent in extents.items()}
    whole: set[sympy.Symbol] = set()
    for expr in (access.load for access in accesses(nest).loads):
        if expr is None or expr.buffer != name or expr.indirect:
            continue
        found = inside(expr, extents)
        form = None if found is None else affine(found.index)
        if found is None or form is None:
            return None
        whole |= found.meant.keys()
        for symbol, step in form[0].items():
            borders = [stride for stride in value.strides if step < stride < step * found.extents[symbol]]
            if any(stride % step for stride in borders):
                return None
            cuts[symbol].update(stride // step for stride in borders)
    chains = {symbol: sorted(found) for symbol, found in cuts.items()}
    if any(b % a for chain in chains.values() for a, b in pairwise(chain)):
        return None
    if any(len(chains[symbol]) > 2 for symbol in whole & chains.keys()):
        return None  # a guard, or a turn, is about one variable
    variables: dict[sympy.Symbol, sympy.Expr] = {}
    sizes = _cut([ivar(k) for k in range(len(nest.sizes))], chains, ivar, variables)
    rsizes = _cut([rvar(k) for k in range(len(nest.rsizes))], chains, rvar, variables)
    if len(sizes) == len(nest.sizes) and len(rsizes) == len(nest.rsizes):
        return nest
    stores = tuple(replace(s, index=sympy.expand(sympy.sympify(s.index).xreplace(variables))) for s in nest.stores)
    return rewritten(replace(nest, sizes=sizes, rsizes=rsizes, stores=stores), lambda expr: rename(expr, variables))


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


def rewritten(nest: LoopNest, change: Callable[[Expr], Expr]) -> LoopNest:
    """A nest with all of its expressions changed."""
    return replace(
        nest,
        reductions=tuple(replace(r, operand=change(r.operand)) for r in nest.reductions),
        stores=tuple(replace(s, value=change(s.value)) for s in nest.stores),
    )


def _at(load: Access, value: Value, extents: Mapping[sympy.Symbol, int]) -> Expr | None:
    """What a reader's load finds, computed; None if it is not known at which point of the value that is."""
    assert load.load is not None
    if load.indirect:
        dimensions = list(zip(value.sizes, value.strides, strict=True))
        return element(load, value.expr, dimensions, value.offset, extents)
    found = inside(load.load, extents)
    place = None if found is None else _place(found, value)
    if found is None or place is None:
        return None
    expr = rename(value.expr, {old: new.xreplace(found.meant) for old, new in place.items()})
    return _within(load.load, expr, extents)


def _place(found: Inside, value: Value) -> dict[sympy.Symbol, sympy.Expr] | None:
    """The value's variables in those of a load, for the address that it is at."""
    form, extents = affine(found.index), found.extents
    if form is None or form[1] < value.offset:
        return None
    rest = form[1] - value.offset
    moving = {symbol: step for symbol, step in form[0].items() if step and extents[symbol] > 1}
    place: dict[sympy.Symbol, sympy.Expr] = {}
    for k, (size, stride) in enumerate(zip(value.sizes, value.strides, strict=True)):
        start, rest = sympy.Integer(rest // stride), rest % stride
        last = int(start)
        for symbol in [symbol for symbol, step in moving.items() if step >= stride and step % stride == 0]:
            step = moving.pop(symbol) // stride
            start, last = start + step * symbol, last + step * (extents[symbol] - 1)
        if last >= size:
            return None
        place[ivar(k)] = start
    return None if moving or rest else place
