"""The index expressions of the loop IR: a closed grammar over sympy, evaluated and bounded exactly.

An index is made of integers, symbols, sums, products, ``sympy.floor(e / n)`` and ``sympy.Mod(e, n)``: nothing else.
Evaluation is generic: a symbol may stand for an int or for anything with integer ``+ * // %`` of Python's meaning
(floor division), such as an int64 tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import sympy

from optfuse.errors import InvalidGraphError

Interval = tuple[Fraction, Fraction]


def evaluate(expr: sympy.Expr | int, values: Mapping[sympy.Symbol, Any]) -> Any:
    """Compute an index expression with the given values of its symbols.

    Raises
    ------
    InvalidGraphError
        A symbol without a value, or a term outside the grammar.
    """
    if isinstance(expr, int):
        return expr
    if expr.is_Integer:
        return int(expr)
    if expr.is_Symbol:
        if expr not in values:
            raise InvalidGraphError(f"index symbol {expr} has no value here; use the nest's own variables")
        return values[expr]
    if expr.is_Add:
        parts = [evaluate(arg, values) for arg in expr.args]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total
    if expr.is_Mul and not any(arg.is_Rational and not arg.is_Integer for arg in expr.args):
        parts = [evaluate(arg, values) for arg in expr.args]
        product = parts[0]
        for part in parts[1:]:
            product = product * part
        return product
    if isinstance(expr, sympy.floor):
        numerator, denominator = sympy.together(expr.args[0]).as_numer_denom()
        return evaluate(numerator, values) // evaluate(denominator, values)
    if isinstance(expr, sympy.Mod):
        return evaluate(expr.args[0], values) % evaluate(expr.args[1], values)
    raise InvalidGraphError(f"index term {expr} is outside the grammar (+, *, floor of a quotient, Mod)")


def bounds(expr: sympy.Expr | int, ranges: Mapping[sympy.Symbol, tuple[int, int]]) -> tuple[int, int] | None:
    """An interval (both ends included) that holds every value of an index; exact when the index is affine.

    ``ranges`` gives the interval of each symbol. None when a symbol has no range or a divisor is not constant.
    """
    interval = _interval(sympy.Integer(expr) if isinstance(expr, int) else expr, ranges)
    return None if interval is None else (int(interval[0]), int(interval[1]))


def _interval(expr: sympy.Expr, ranges: Mapping[sympy.Symbol, tuple[int, int]]) -> Interval | None:
    if expr.is_Rational:
        value = Fraction(int(expr.p), int(expr.q))
        return value, value
    if expr.is_Symbol:
        return None if expr not in ranges else (Fraction(ranges[expr][0]), Fraction(ranges[expr][1]))
    parts = [_interval(arg, ranges) for arg in expr.args]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    if expr.is_Add:
        return sum((lo for lo, _ in known), Fraction(0)), sum((hi for _, hi in known), Fraction(0))
    if expr.is_Mul:
        low, high = known[0]
        for lo, hi in known[1:]:
            corners = (low * lo, low * hi, high * lo, high * hi)
            low, high = min(corners), max(corners)
        return low, high
    if isinstance(expr, sympy.floor):
        return Fraction(known[0][0] // 1), Fraction(known[0][1] // 1)
    if isinstance(expr, sympy.Mod):
        return _mod_interval(known[0], known[1])
    return None


def _mod_interval(value: Interval, modulus: Interval) -> Interval | None:
    if modulus[0] != modulus[1] or modulus[0] <= 0:
        return None
    n = modulus[0]
    if value[0] // n == value[1] // n:
        return value[0] % n, value[1] % n
    return Fraction(0), n - 1


def affine(expr: sympy.Expr | int) -> tuple[dict[sympy.Symbol, int], int] | None:
    """Coefficients by symbol and the constant term of an integer affine expression; None when it is not one."""
    if isinstance(expr, int):
        return {}, expr
    terms: dict[sympy.Symbol, int] = {}
    constant = 0
    for term in sympy.Add.make_args(sympy.expand(expr)):
        factor, rest = term.as_coeff_Mul()
        if not factor.is_Integer:
            return None
        if rest is sympy.S.One:
            constant += int(factor)
        elif rest.is_Symbol:
            terms[rest] = terms.get(rest, 0) + int(factor)
        else:
            return None
    return terms, constant
