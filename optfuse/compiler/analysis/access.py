"""What a nest touches: its loads and stores as integer layouts wherever their indices are affine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import sympy

from optfuse.compiler.ir.nodes import Call, Expr, Load, LoopNest, ivar, rvar


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store of a nest.

    ``coefficients`` (elements, one for each i dimension and then each r dimension) and ``offset`` give the address
    when the index is affine; ``coefficients`` is None otherwise. An indirect access adds terms that depend on data.
    ``exact`` means that this is the address touched at every iteration: affine, not guarded, not indirect.
    """

    buffer: str
    coefficients: tuple[int, ...] | None
    offset: int
    guarded: bool
    indirect: bool
    load: Load | None = None

    @property
    def exact(self) -> bool:
        """Whether the address is a known affine function of the iteration, without condition."""
        return self.coefficients is not None and not self.guarded and not self.indirect


@dataclass(frozen=True, slots=True)
class NestAccesses:
    """All accesses of a nest, loads without repeats."""

    loads: tuple[Access, ...]
    stores: tuple[Access, ...]


def walk(expr: Expr) -> Iterator[Expr]:
    """An expression and all that it is made of, indirect indices included."""
    stack = [expr]
    while stack:
        top = stack.pop()
        yield top
        if isinstance(top, Call):
            stack.extend(top.args)
        elif isinstance(top, Load):
            stack.extend(top.indirect)


def roots(nest: LoopNest) -> tuple[Expr, ...]:
    """The expressions of a nest: the reductions' operands and the stored values."""
    return tuple(r.operand for r in nest.reductions) + tuple(s.value for s in nest.stores)


@lru_cache(maxsize=65536)
def affine(index: sympy.Expr) -> tuple[dict[sympy.Symbol, int], int] | None:
    """Coefficients by symbol and the constant term of an integer affine expression; None when it is not one."""
    terms: dict[sympy.Symbol, int] = {}
    constant = 0
    for term in sympy.Add.make_args(sympy.expand(index) if index.is_Mul or index.is_Pow else index):
        if term.is_Integer:
            constant += int(term)
        elif term.is_Symbol:
            terms[term] = terms.get(term, 0) + 1
        elif term.is_Mul and len(term.args) == 2 and term.args[0].is_Integer and term.args[1].is_Symbol:
            terms[term.args[1]] = terms.get(term.args[1], 0) + int(term.args[0])
        elif term.is_Mul and any(arg.is_Add for arg in term.args):
            inner = affine(sympy.expand(term))
            if inner is None:
                return None
            for symbol, coefficient in inner[0].items():
                terms[symbol] = terms.get(symbol, 0) + coefficient
            constant += inner[1]
        else:
            return None
    return terms, constant


def accesses(nest: LoopNest) -> NestAccesses:
    """Collect the loads and stores of a nest, with their layouts over (i dimensions, r dimensions)."""
    symbols = [ivar(k) for k in range(len(nest.sizes))] + [rvar(k) for k in range(len(nest.rsizes))]
    loads: dict[Load, Access] = {}
    for root in roots(nest):
        for expr in walk(root):
            if isinstance(expr, Load) and expr not in loads:
                coefficients, offset = _layout(expr.index, symbols)
                loads[expr] = Access(expr.buffer, coefficients, offset, bool(expr.guards), bool(expr.indirect), expr)
    stores = []
    for store in nest.stores:
        coefficients, offset = _layout(store.index, symbols)
        stores.append(Access(store.buffer, coefficients, offset, guarded=False, indirect=False))
    return NestAccesses(tuple(loads.values()), tuple(stores))


def _layout(index: sympy.Expr, symbols: list[sympy.Symbol]) -> tuple[tuple[int, ...] | None, int]:
    form = affine(sympy.sympify(index))
    if form is None:
        return None, 0
    return tuple(form[0].get(symbol, 0) for symbol in symbols), form[1]
