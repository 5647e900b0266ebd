"""Collapse adjacent loop variables of a nest that all of its indices use as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from math import prod

import sympy

from optfuse.compiler.ir.index_expressions import affine
from optfuse.compiler.ir.nodes import Call, Const, Dot, Expr, Iota, Load, LoopNest, Result, ivar, rvar
from optfuse.compiler.ir.sizes import variables_of
from optfuse.compiler.ir.traversal import operands, stored, subexpressions

Terms = tuple[tuple[sympy.Expr, int | sympy.Expr], ...]


def collapse(nest: LoopNest) -> LoopNest:
    """The nest with adjacent variables merged where possible; the points and their order do not change.

    Adjacent variables a (outer) and b (inner, of size B) merge if each index and guard has them only as
    ``c * (B*a + b)``.
    """
    if len(nest.sizes) < 2 and len(nest.rsizes) < 2:
        return nest
    terms = [_terms(e) for e in set(_indices(nest))]
    frozen = frozenset(s for t in terms for key, _ in t if not key.is_Symbol for s in variables_of(key))
    coefficients = [dict(t) for t in terms]

    isizes, imap = _merge(nest.sizes, [ivar(k) for k in range(len(nest.sizes))], ivar, coefficients, frozen)
    rsizes, rmap = _merge(nest.rsizes, [rvar(k) for k in range(len(nest.rsizes))], rvar, coefficients, frozen)
    mapping = imap | rmap
    if len(isizes) == len(nest.sizes) and len(rsizes) == len(nest.rsizes):
        return nest

    def index(e: sympy.Expr) -> sympy.Expr:
        return e.xreplace(mapping)

    known: dict[int, Expr] = {}

    def value(e: Expr) -> Expr:
        return _with_indices(e, index, known)

    return replace(
        nest,
        sizes=isizes,
        rsizes=rsizes,
        reductions=tuple(replace(r, operand=value(r.operand)) for r in nest.reductions),
        stores=tuple(
            replace(
                s,
                index=index(s.index),
                value=value(s.value),
                indirect=tuple(value(e) for e in s.indirect),
            )
            for s in nest.stores
        ),
        scan=nest.scan and replace(nest.scan, operands=tuple(value(e) for e in nest.scan.operands)),
    )


def _with_indices(expr: Expr, function: Callable[[sympy.Expr], sympy.Expr], known: dict[int, Expr]) -> Expr:
    """``expr`` with ``function`` applied to every index, guards' expressions and indirect operands included.

    ``known``: results by the identity of an expression. What a nest has in several places stays one object, which later
    stages walk through once.
    """
    made = known.get(id(expr))
    if made is None:
        made = known[id(expr)] = _rebuilt(expr, function, known)
    return made


def _rebuilt(expr: Expr, function: Callable[[sympy.Expr], sympy.Expr], known: dict[int, Expr]) -> Expr:
    match expr:
        case Const() | Result():
            return expr
        case Iota():
            return replace(expr, index=function(expr.index))
        case Call():
            return replace(expr, args=tuple(_with_indices(a, function, known) for a in expr.args))
        case Load():
            return replace(
                expr,
                index=function(expr.index),
                guards=tuple(replace(g, expr=function(g.expr)) for g in expr.guards),
                indirect=tuple(_with_indices(a, function, known) for a in expr.indirect),
            )
        case Dot():
            left, right = (replace(load, index=function(load.index)) for load in (expr.left, expr.right))
            return replace(expr, left=left, right=right)


def _indices(nest: LoopNest) -> Iterator[sympy.Expr]:
    yield from (store.index for store in nest.stores)
    for expr in subexpressions(operands(nest) + stored(nest)):
        if isinstance(expr, Iota | Load):
            yield expr.index
        if isinstance(expr, Load):
            yield from (guard.expr for guard in expr.guards)


@lru_cache(maxsize=1 << 16)
def _terms(expr: sympy.Expr) -> Terms:
    """The summands of an index as (term, coefficient). Variables in terms that are no symbols do not merge."""
    form = affine(expr)
    if form is not None:
        return tuple(form[0].items())
    return tuple((key, value) for key, value in expr.as_coefficients_dict().items() if variables_of(key))


def _merge(
    sizes: tuple[int, ...],
    symbols: list[sympy.Symbol],
    variable: Callable[[int], sympy.Symbol],
    coefficients: list[dict[sympy.Expr, int | sympy.Expr]],
    frozen: frozenset[sympy.Basic],
) -> tuple[tuple[int, ...], dict[sympy.Symbol, sympy.Expr]]:
    """The merged sizes, and the new symbol of each old one (0 if it is part of its inner neighbour's)."""
    groups: list[list[int]] = []
    for k, symbol in enumerate(symbols):
        outer = symbols[k - 1] if k else None
        joins = (
            outer is not None
            and outer not in frozen
            and symbol not in frozen
            and all(c.get(outer, 0) == sizes[k] * c.get(symbol, 0) for c in coefficients)
        )
        if joins:
            groups[-1].append(k)
        else:
            groups.append([k])
    merged: list[int] = []
    mapping: dict[sympy.Symbol, sympy.Expr] = {}
    for position, group in enumerate(groups):
        merged.append(prod(sizes[k] for k in group))
        mapping |= {symbols[k]: sympy.S.Zero for k in group}
        mapping[symbols[group[-1]]] = variable(position)
    return tuple(merged), mapping
