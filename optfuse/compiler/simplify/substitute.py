"""Substitute a producer's expression for its consumer's loads.

A value is described by address: an expression over as few dimensions as its indices allow. A load's address gives the
point of those dimensions, and the expression at that point replaces the load. The load's guards are kept: outside of
them the consumer sees what the load would have yielded, and no memory is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

import sympy

from optfuse.compiler.analysis.access import Access, accesses
from optfuse.compiler.ir.index_expressions import affine
from optfuse.compiler.ir.nodes import Call, Const, Expr, Iota, Load, LoopNest, ivar, rvar
from optfuse.compiler.ir.sizes import divides
from optfuse.compiler.ir.traversal import subexpressions
from optfuse.compiler.simplify.expressions import chosen, guarded, rename
from optfuse.compiler.simplify.gathered_values import gathered_element


@dataclass(frozen=True, slots=True)
class Value:
    """A value by address: ``expr`` over i variables, one for each dimension of these ``sizes`` and ``strides``."""

    expr: Expr
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


def by_address(expr: Expr, sizes: tuple[int, ...], written: Access) -> Value | None:
    """The value over as few dimensions as its indices allow; None if two points may share an address."""
    steps = written.coefficients or ()
    parts = [part for part in subexpressions([expr]) if isinstance(part, Load | Iota)]
    indices = [part.index for part in parts]
    indices += [guard.expr for part in parts if isinstance(part, Load) for guard in part.guards]
    forms = [affine(index) for index in indices]
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
    """The consumer with ``value`` in the place of its loads of ``name``; None if some load's point is not known."""
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
    """The size of each variable of a nest."""
    return {ivar(k): n for k, n in enumerate(nest.sizes)} | {rvar(k): n for k, n in enumerate(nest.rsizes)}


# --- guards ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inside:
    """A load where its guards hold: its index, the sizes of its variables, and those in terms of the nest's variables.

    A guarded variable starts at its guard's 0, and a rotated one (``(i + 3) % n``) where the remainder is 0.
    """

    index: sympy.Expr
    extents: dict[sympy.Symbol, int]
    meant: dict[sympy.Symbol, sympy.Expr]


def inside(load: Load, extents: Mapping[sympy.Symbol, int]) -> Inside | None:
    """A load restricted to its guards; None unless each guard bounds another variable, from 0 on."""
    index, bounded = load.index, dict(extents)
    meant: dict[sympy.Symbol, sympy.Expr] = {}
    for guard in load.guards:
        symbol, shift = _shift(guard.expr) or (None, 0)
        if symbol is None or symbol in meant or guard.lower < 0:
            return None
        index = index.xreplace({symbol: symbol - shift})
        bounded[symbol] = min(guard.upper, extents[symbol] + shift)
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
    """The variable and the constant of ``variable + constant``; None for other expressions."""
    form = affine(expr)
    return (*form[0], form[1]) if form is not None and list(form[0].values()) == [1] else None


def _within(load: Load, expr: Expr, extents: Mapping[sympy.Symbol, int]) -> Expr:
    """``expr`` where the load's guards hold, else the load's ``other``; loads in ``expr`` get the guards."""
    if not load.guards or load.other is None:
        return expr
    held: Expr | None = None
    for guard in load.guards:
        symbol, shift = _shift(guard.expr) or (ivar(0), 0)
        position = Iota(guard.expr, "int32")
        for function, limit, needed in (
            ("ge", guard.lower, shift < guard.lower),
            ("lt", guard.upper, extents[symbol] + shift > guard.upper),
        ):
            if needed:
                bound = Call(function, (position, Const(limit, "int32")), "bool")
                held = bound if held is None else Call("bitwise_and", (held, bound), "bool")
    expr = guarded(expr, load.guards, held)
    return expr if held is None else chosen(held, expr, load.other)


# --- places ------------------------------------------------------------------------------------------------------


def _refined(nest: LoopNest, name: str, value: Value) -> LoopNest | None:
    """The consumer with its dimensions cut where its loads pass from one dimension of the value to the next."""
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
        return None  # a guard or a rotation is of one variable
    variables: dict[sympy.Symbol, sympy.Expr] = {}
    sizes = _cut([ivar(k) for k in range(len(nest.sizes))], chains, ivar, variables)
    rsizes = _cut([rvar(k) for k in range(len(nest.rsizes))], chains, rvar, variables)
    if len(sizes) == len(nest.sizes) and len(rsizes) == len(nest.rsizes):
        return nest
    if nest.scan is not None and len(rsizes) != 1:
        return None  # a scan is along one variable
    stores = tuple(replace(s, index=sympy.expand(s.index.xreplace(variables))) for s in nest.stores)
    return rewritten(replace(nest, sizes=sizes, rsizes=rsizes, stores=stores), lambda expr: rename(expr, variables))


def _cut(
    symbols: Iterable[sympy.Symbol],
    chains: Mapping[sympy.Symbol, list[int]],
    make: Callable[[int], sympy.Symbol],
    variables: dict[sympy.Symbol, sympy.Expr],
) -> tuple[int, ...]:
    """Sizes of the pieces of some dimensions, outermost first; adds the old variables in terms of the new ones."""
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
        stores=tuple(replace(s, value=change(s.value), indirect=tuple(map(change, s.indirect))) for s in nest.stores),
        scan=nest.scan and replace(nest.scan, operands=tuple(map(change, nest.scan.operands))),
    )


def _at(load: Access, value: Value, extents: Mapping[sympy.Symbol, int]) -> Expr | None:
    """The expression of the element that a load reads; None if its point is not known."""
    assert load.load is not None
    if load.indirect:
        dimensions = list(zip(value.sizes, value.strides, strict=True))
        return gathered_element(load, value.expr, dimensions, value.offset, extents)
    found = inside(load.load, extents)
    place = None if found is None else _place(found, value)
    if found is None or place is None:
        return None
    expr = rename(value.expr, {old: new.xreplace(found.meant) for old, new in place.items()})
    return _within(load.load, expr, extents)


def _place(found: Inside, value: Value) -> dict[sympy.Symbol, sympy.Expr] | None:
    """The value's variables in terms of the load's, from its address; None where they are not known."""
    form, extents = affine(found.index), found.extents
    if form is None or form[1] < value.offset:
        return None
    rest = form[1] - value.offset
    moving = {symbol: step for symbol, step in form[0].items() if step and extents[symbol] > 1}
    place: dict[sympy.Symbol, sympy.Expr] = {}
    for k, (size, stride) in enumerate(zip(value.sizes, value.strides, strict=True)):
        last, rest = divmod(rest, stride)
        start = sympy.sympify(last)
        for symbol in [symbol for symbol, step in moving.items() if step >= stride and divides(stride, step)]:
            step = moving.pop(symbol) // stride
            start, last = start + step * symbol, last + step * (extents[symbol] - 1)
        if last >= size:
            return None
        place[ivar(k)] = start
    return None if moving or rest else place
