"""Values that are looked up: an index that is data (a label's column) picks one element of each row.

Whoever picks a few elements of a large value can compute those for itself, and the value need never be there: of the
logarithms of 8,192 times 50,257 probabilities a loss needs 8,192.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import sympy

from optfuse.compiler.analysis.access import Access, accesses, affine, walk
from optfuse.compiler.ir.nodes import Call, Expr, Iota, Load, LoopNest, Op, ivar, tvar
from optfuse.compiler.simplify.split_reductions import rename

#: Elements of a value for one that is looked up, at least, for it to be computed where it is.
LEAST_RATIO = 32


def looked_up(reader: Op, name: str, elements: int) -> bool:
    """Whether an op only looks up few of a buffer's ``elements``."""
    if not isinstance(reader, LoopNest):
        return False
    loads = [load for load in accesses(reader).loads if load.buffer == name]
    points = prod(int(n) for n in (*reader.sizes, *reader.rsizes))
    return all(load.indirect for load in loads) and len(loads) * points * LEAST_RATIO <= elements


def element(
    load: Access, expr: Expr, dimensions: Sequence[tuple[int, int]], offset: int, extents: Mapping[sympy.Symbol, int]
) -> Expr | None:
    """The element that a load looks up of a value, computed where it is looked up; None if it is not clear which.

    Parameters
    ----------
    load
        A load at an index that is affine in the reader's variables and in one looked up, without guards.
    expr
        The value over i variables, one a dimension, all of its loads at known addresses.
    dimensions, offset
        Size and stride of each of the value's dimensions, outermost first, and the address of its first element.
    extents
        The reader's variables.

    Dimensions outside of the one that is looked up must each be walked in full by one variable. Then no index that lies
    within the value's memory can reach beyond its dimension: at the last point of the outer ones nothing follows.
    """
    form = None if load.load is None or load.guarded else affine(load.load.index)
    if form is None or load.load is None or len(load.load.indirect) != 1 or form[1] != offset:
        return None
    moving = {symbol: step for symbol, step in form[0].items() if step}
    step = moving.get(tvar(0), 0)
    chosen = next(
        (k for k, (n, stride) in enumerate(dimensions) if n > 1 and step >= stride and step % stride == 0), -1
    )
    if chosen < 0:
        return None
    place: dict[sympy.Symbol, sympy.Expr] = {}
    for k, (size, stride) in enumerate(dimensions):
        if k == chosen:
            walking = [symbol for symbol, step in moving.items() if step >= stride and step % stride == 0]
            place[ivar(k)] = sympy.Add(*(moving[symbol] // stride * symbol for symbol in walking))
        else:
            walking = [symbol for symbol, step in moving.items() if step == stride and extents.get(symbol) == size]
            if size > 1 and len(walking) != 1:
                return None
            place[ivar(k)] = walking[0] if walking else sympy.Integer(0)
        moving = {symbol: step for symbol, step in moving.items() if symbol not in walking}
    if moving or any(isinstance(part, Iota) and part.index.has(ivar(chosen)) for part in walk(expr)):
        return None
    return _by_data(rename(expr, place), load.load.indirect)


def _by_data(expr: Expr, indirect: tuple[Expr, ...]) -> Expr:
    """An expression whose loads say where the index that they are at comes from."""
    if isinstance(expr, Load):
        return replace(expr, indirect=indirect) if expr.index.has(tvar(0)) else expr
    if isinstance(expr, Call):
        return replace(expr, args=tuple(_by_data(arg, indirect) for arg in expr.args))
    return expr
