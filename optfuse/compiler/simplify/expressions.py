"""Expressions rewritten: variables renamed, results of reductions replaced, loads kept within guards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import sympy

from optfuse.compiler.ir.dtypes import FLOATING, NARROW
from optfuse.compiler.ir.nodes import Call, Const, Dot, Expr, Guard, Iota, Load, Result
from optfuse.compiler.ir.sizes import equal, variables_of


def rename(expr: Expr, variables: Mapping[sympy.Symbol, sympy.Expr]) -> Expr:
    """An expression with its iteration variables replaced; shared subexpressions stay shared."""
    known: dict[int, Expr] = {}

    def index(old: sympy.Expr) -> sympy.Expr:
        return sympy.expand(old.xreplace(dict(variables)))

    def renamed(expr: Expr) -> Expr:
        if id(expr) not in known:
            known[id(expr)] = made(expr)
        return known[id(expr)]

    def made(expr: Expr) -> Expr:
        match expr:
            case Load():
                return replace(
                    expr,
                    index=index(expr.index),
                    guards=tuple(Guard(index(g.expr), g.lower, g.upper) for g in expr.guards),
                    indirect=tuple(map(renamed, expr.indirect)),
                )
            case Iota():
                return replace(expr, index=index(expr.index))
            case Call():
                return replace(expr, args=tuple(map(renamed, expr.args)))
            case Dot():
                left, right = (replace(load, index=index(load.index)) for load in (expr.left, expr.right))
                return replace(expr, left=left, right=right)
            case Const() | Result():
                return expr

    return renamed(expr)


def with_results(expr: Expr, results: Mapping[int, Expr]) -> Expr:
    """An expression with the results of reductions replaced."""
    match expr:
        case Result():
            return results[expr.k]
        case Call():
            return replace(expr, args=tuple(with_results(arg, results) for arg in expr.args))
        case _:
            return expr


def chosen(held: Expr, expr: Expr, other: Const) -> Expr:
    """``where(held, expr, other)``, in float32 if narrow: the operand of a cast to a narrow type, or a cast."""
    wide = expr
    if expr.dtype in NARROW:
        rounded = isinstance(expr, Call) and expr.function == "cast" and expr.args[0].dtype in FLOATING - NARROW
        wide = expr.args[0] if isinstance(expr, Call) and rounded else Call("cast", (expr,), "float32")
    made = Call("where", (held, wide, Const(other.value, wide.dtype)), wide.dtype)
    return made if wide is expr else Call("cast", (made,), expr.dtype)


def guarded(expr: Expr, guards: tuple[Guard, ...], held: Expr | None) -> Expr:
    """The expression with each load under those of the guards whose variables its index uses, or that one point meets.

    (A load that does not use the variable of such a guard is of a value without that dimension: it is read once still.)
    An index that has to lie in a dimension does so only where all guards hold (``held``).
    """
    if isinstance(expr, Call):
        args = [guarded(arg, guards, held) for arg in expr.args]
        if expr.function == "position" and held is not None:
            args[0] = Call("where", (held, args[0], Const(0, args[0].dtype)), args[0].dtype)
        return replace(expr, args=tuple(args))
    if not isinstance(expr, Load):
        return expr
    expr = replace(expr, indirect=tuple(guarded(index, guards, held) for index in expr.indirect))
    used = variables_of(expr.index)
    bounding = tuple(g for g in guards if equal(g.upper - g.lower, 1) or variables_of(g.expr) & used)
    if not bounding:
        return expr
    return replace(expr, guards=(*expr.guards, *bounding), other=expr.other or Const(0, expr.dtype))
