"""Walks over the expressions of a loop nest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from optfuse.compiler.ir.nodes import Call, Dot, Expr, Load, LoopNest


def operands(nest: LoopNest) -> list[Expr]:
    """The operands of the nest's reductions or of its scan."""
    return [*(reduction.operand for reduction in nest.reductions), *(nest.scan.operands if nest.scan else ())]


def stored(nest: LoopNest) -> list[Expr]:
    """The expressions that the nest stores, and the indirect indices of where it stores them."""
    return [expr for store in nest.stores for expr in (store.value, *store.indirect)]


def stored_sizes(nest: LoopNest) -> tuple[int, ...]:
    """The sizes of the variables that stores use: i variables, and the r variable of a scan."""
    return nest.sizes if nest.scan is None else (*nest.sizes, *nest.rsizes)


def subexpressions(roots: Iterable[Expr]) -> Iterator[Expr]:
    """The roots and all that they are made of, indirect indices included; each object once, the last root first."""
    stack, seen = list(roots), set[int]()
    while stack:
        expr = stack.pop()
        if id(expr) in seen:
            continue
        seen.add(id(expr))
        yield expr
        if isinstance(expr, Call):
            stack.extend(expr.args)
        elif isinstance(expr, Load):
            stack.extend(expr.indirect)
        elif isinstance(expr, Dot):
            stack += [expr.left, expr.right]


def dot_in(nest: LoopNest) -> Dot | None:
    """The product of matrices that a nest computes an element of at each point, if it does."""
    if not nest.pointwise or len(nest.sizes) != 2:
        return None
    return next((expr for expr in subexpressions(stored(nest)) if isinstance(expr, Dot)), None)


def loads_under(roots: Iterable[Expr]) -> Iterator[Load]:
    """The loads among the subexpressions of some roots."""
    return (expr for expr in subexpressions(roots) if isinstance(expr, Load))


def loads(nest: LoopNest) -> Iterator[Load]:
    """The loads of a nest, indirect ones included."""
    return loads_under(operands(nest) + stored(nest))
