"""Inline values that are only gathered: an index from data (a label) selects one element of each row.

A consumer that gathers few elements of a large value can compute those itself, and the value is never stored: of the
logarithms of 8,192 times 50,257 probabilities a loss needs 8,192.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import sympy

from optfuse.compiler.analysis.access import Access, accesses
from optfuse.compiler.ir.index_expressions import affine
from optfuse.compiler.ir.nodes import Call, Expr, Iota, Load, LoopNest, Op, ivar, tvar
from optfuse.compiler.ir.sizes import divides
from optfuse.compiler.ir.traversal import subexpressions
from optfuse.compiler.simplify.expressions import rename

#: The least number of a value's elements for each one that is gathered.
LEAST_RATIO = 32


def is_sparse_gather(reader: Op | None, name: str, elements: int) -> bool:
    """Whether an op only gathers few of a buffer's ``elements``."""
    if not isinstance(reader, LoopNest):
        return False
    loads = [load for load in accesses(reader).loads if load.buffer == name]
    points = prod((*reader.sizes, *reader.rsizes))
    return all(load.indirect for load in loads) and len(loads) * points * LEAST_RATIO <= elements


def gathered_element(
    load: Access, expr: Expr, dimensions: Sequence[tuple[int, int]], offset: int, extents: Mapping[sympy.Symbol, int]
) -> Expr | None:
    """The expression of the element that a load gathers from a value; None if its position is not known.

    Args:
        load: A load without guards, at an index that is affine in the consumer's variables and one indirect index.
        expr: The value, over one i variable a dimension, with all of its loads at known addresses.
        dimensions, offset: Size and stride of each of the value's dimensions, outermost first, and the address of its
            first element.
        extents: The sizes of the consumer's variables.

    Each dimension outside of the gathered one must be covered in full by one variable. Then no index within the value's
    memory can reach beyond the gathered dimension: at the last point of the outer dimensions no memory follows.
    """
    form = None if load.load is None or load.guarded else affine(load.load.index)
    if form is None or load.load is None or len(load.load.indirect) != 1 or form[1] != offset:
        return None
    moving = {symbol: step for symbol, step in form[0].items() if step}
    step = moving.get(tvar(0), 0)
    chosen = next(
        (k for k, (n, stride) in enumerate(dimensions) if n > 1 and step >= stride and divides(stride, step)), -1
    )
    if chosen < 0:
        return None
    place: dict[sympy.Symbol, sympy.Expr] = {}
    for k, (size, stride) in enumerate(dimensions):
        if k == chosen:
            walking = [symbol for symbol, step in moving.items() if step >= stride and divides(stride, step)]
            place[ivar(k)] = sympy.Add(*(moving[symbol] // stride * symbol for symbol in walking))
        else:
            walking = [symbol for symbol, step in moving.items() if step == stride and extents.get(symbol) == size]
            if size > 1 and len(walking) != 1:
                return None
            place[ivar(k)] = walking[0] if walking else sympy.Integer(0)
        moving = {symbol: step for symbol, step in moving.items() if symbol not in walking}
    if moving or any(isinstance(part, Iota) and part.index.has(ivar(chosen)) for part in subexpressions([expr])):
        return None
    return _by_data(rename(expr, place), load.load.indirect)


def _by_data(expr: Expr, indirect: tuple[Expr, ...]) -> Expr:
    """The expression with ``indirect`` set on its loads at t0."""
    if isinstance(expr, Load):
        return replace(expr, indirect=indirect) if expr.index.has(tvar(0)) else expr
    if isinstance(expr, Call):
        return replace(expr, args=tuple(_by_data(arg, indirect) for arg in expr.args))
    return expr
