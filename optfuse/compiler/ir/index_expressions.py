"""Index expressions of the loop IR, a closed grammar over sympy: evaluate, bound, print and parse them.

An index is made of integers, symbols, sums, products, ``sympy.floor(e / n)`` and ``sympy.Mod(e, n)``, and nothing else.
Evaluation is generic: a symbol may stand for an int or for anything with integer ``+ * // %`` of Python's meaning
(floor division), such as an int64 tensor.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

import sympy

from optfuse.compiler.ir.sizes import Size, SizeSymbol, size_in_index, variables_of
from optfuse.errors import InvalidGraphError

#: Ends are fractions inside of a quotient only: ints (and sizes with formulas) stay what they are.
Interval = tuple[int | Fraction, int | Fraction]


def evaluate(expr: sympy.Expr, values: Mapping[sympy.Symbol, Any]) -> Any:
    """Compute an index expression with the given values of its symbols.

    Raises:
        InvalidGraphError: A symbol without a value, or a term outside the grammar.
    """
    if expr.is_Integer:
        return int(expr)
    if isinstance(expr, SizeSymbol):
        return Size.symbol(expr.name, expr.decisions)
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


def bounds(expr: sympy.Expr, ranges: Mapping[sympy.Symbol, tuple[int, int]]) -> tuple[int, int] | None:
    """An interval (both ends included) that holds every value of an index; exact when the index is affine.

    ``ranges`` gives the interval of each symbol. None when a symbol has no range or a divisor is not constant.
    """
    form = affine(expr) if expr.has(SizeSymbol) else None
    known = form is not None and form[0].keys() <= ranges.keys()
    interval = _affine_interval(*form, ranges) if form is not None and known else _interval(expr, ranges)
    return None if interval is None else (_whole(interval[0]), _whole(interval[1]))


def _affine_interval(
    factors: Mapping[sympy.Symbol, int], constant: int, ranges: Mapping[sympy.Symbol, tuple[int, int]]
) -> Interval:
    low = high = constant
    for symbol, factor in factors.items():
        ends = ranges[symbol] if factor >= 0 else ranges[symbol][::-1]
        low, high = low + factor * ends[0], high + factor * ends[1]
    return low, high


def _whole(value: int | Fraction) -> int:
    return value if isinstance(value, int) else int(value)


def _interval(expr: sympy.Expr, ranges: Mapping[sympy.Symbol, tuple[int, int]]) -> Interval | None:
    if expr.is_Rational:
        value = int(expr.p) if expr.is_Integer else Fraction(int(expr.p), int(expr.q))
        return value, value
    if isinstance(expr, SizeSymbol):
        size = Size.symbol(expr.name, expr.decisions)
        return size, size
    if expr.is_Symbol:
        return ranges.get(expr)
    if isinstance(expr, sympy.floor) and expr.has(SizeSymbol):
        numerator, denominator = sympy.together(expr.args[0]).as_numer_denom()
        ends, divisor = _interval(numerator, ranges), size_in_index(denominator)
        return None if ends is None or divisor is None else (ends[0] // divisor, ends[1] // divisor)
    parts = [_interval(arg, ranges) for arg in expr.args]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    if expr.is_Add:
        return sum(lo for lo, _ in known), sum(hi for _, hi in known)
    if expr.is_Mul:
        low, high = known[0]
        for lo, hi in known[1:]:
            corners = (low * lo, low * hi, high * lo, high * hi)
            low, high = min(corners), max(corners)
        return low, high
    if isinstance(expr, sympy.floor):
        return known[0][0] // 1, known[0][1] // 1
    if isinstance(expr, sympy.Mod):
        return _mod_interval(known[0], known[1])
    return None


def _mod_interval(value: Interval, modulus: Interval) -> Interval | None:
    if modulus[0] != modulus[1] or modulus[0] <= 0:
        return None
    n = modulus[0]
    if value[0] // n == value[1] // n:
        return value[0] % n, value[1] % n
    return 0, n - 1


@lru_cache(maxsize=65536)
def affine(expr: sympy.Expr) -> tuple[dict[sympy.Symbol, int], int] | None:
    """Coefficients by variable and the constant term of an affine expression; None when it is not one.

    Coefficients and constant are whole numbers, sizes among them.
    """
    terms: dict[sympy.Symbol, int] = {}
    constant = 0
    for term in sympy.Add.make_args(expr):
        variable, factor = _product(term)
        if factor is None:
            expanded = sympy.expand(expr)
            return None if expanded == expr else affine(expanded)
        if variable is None:
            constant += factor
        else:
            terms[variable] = terms.get(variable, 0) + factor
    return terms, constant


def _product(term: sympy.Expr) -> tuple[sympy.Symbol | None, int | None]:
    """(variable or None, factor) of a term of an index; the factor is None if it is no such product."""
    variables = variables_of(term)
    if not variables:
        return None, size_in_index(term)
    if len(variables) > 1:
        return None, None
    (variable,) = variables
    if term == variable:
        return variable, 1
    others = [part for part in term.args if part != variable] if term.is_Mul else []
    if not term.is_Mul or len(others) + 1 != len(term.args) or any(map(variables_of, others)):
        return None, None
    return variable, size_in_index(sympy.Mul(*others))


def format_index(expr: sympy.Expr) -> str:
    """An index as text in Python's own syntax (``//`` and ``%`` are floor division and remainder), canonical.

    >>> format_index(sympy.Symbol("i0") * 5 + 1)
    '5*i0 + 1'
    """
    return _format(expr, _SUM)


def parse_index(text: str) -> sympy.Expr:
    """The index that ``format_index`` wrote; text outside the grammar is never evaluated.

    Raises:
        ValueError: Text outside the grammar, or a symbol that is no iteration variable, digit or indirect index.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"an index of {len(text)} characters; the limit is {_LONGEST}")
    try:
        return _parse(ast.parse(text, mode="eval").body, text)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text!r} is no index expression") from error


_SUM, _PRODUCT, _ATOM = 0, 1, 2
_LONGEST = 10_000
_VARIABLE = re.compile(r"[irtXR][0-9]{1,6}")


def _format(expr: sympy.Expr, tightness: int) -> str:
    """``tightness``: the loosest form that needs no parentheses here: a sum, a product (or remainder), or an atom."""
    if expr.is_Symbol or (expr.is_Integer and (expr >= 0 or tightness == _SUM)):
        return str(expr)
    if expr.is_Integer:
        return f"({expr})"
    if expr.is_Add:
        text, level = _format_sum(expr), _SUM
    elif expr.is_Mul:
        factor, rest = expr.as_coeff_Mul()
        parts = sorted(_format(part, _ATOM) for part in sympy.Mul.make_args(rest))
        if factor == -1 and rest.is_Symbol:
            parts = [f"-{rest}"]
        elif factor != 1:
            parts.insert(0, str(factor))
        text, level = "*".join(parts), _PRODUCT if factor >= 0 else _SUM
    elif isinstance(expr, sympy.floor):
        numerator, denominator = sympy.together(expr.args[0]).as_numer_denom()
        text, level = f"{_format(numerator, _ATOM)} // {_format(denominator, _ATOM)}", _PRODUCT
    elif isinstance(expr, sympy.Mod):
        text, level = f"{_format(expr.args[0], _ATOM)} % {_format(expr.args[1], _ATOM)}", _PRODUCT
    else:
        raise InvalidGraphError(f"index term {expr} is outside the grammar (+, *, floor of a quotient, Mod)")
    return text if level >= tightness else f"({text})"


def _format_sum(expr: sympy.Expr) -> str:
    def order(term: sympy.Expr) -> tuple[bool, str]:
        return bool(term.is_Integer), _format(term.as_coeff_Mul()[1], _ATOM)

    text = ""
    for term in sorted(expr.args, key=order):
        negative = term.as_coeff_Mul()[0] < 0
        sign = (" - " if negative else " + ") if text else ("-" if negative else "")
        # in front, a minus would bind to the first operand of // or % alone
        leads = sign == "-" and isinstance(-term, sympy.floor | sympy.Mod)
        text += sign + _format(-term if negative else term, _ATOM if leads else _PRODUCT)
    return text


def _parse(node: ast.expr, text: str) -> sympy.Expr:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return sympy.Integer(value)
        case ast.Name(id=name) if _VARIABLE.fullmatch(name):
            return sympy.Symbol(name, integer=True, nonnegative=True if name[0] != "t" else None)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_parse(operand, text)
        case ast.BinOp(op=ast.Mult()):
            # all factors at once: sympy would distribute a number over the first sum it meets
            return sympy.Mul(*(_parse(factor, text) for factor in _factors(node)))
        case ast.BinOp(left=left, op=op, right=right):
            return _binary(op, _parse(left, text), _parse(right, text), text)
        case _:
            raise ValueError(f"{text!r} is no index expression")


def _factors(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        yield from _factors(node.left)
        yield from _factors(node.right)
    else:
        yield node


def _binary(op: ast.operator, a: sympy.Expr, b: sympy.Expr, text: str) -> sympy.Expr:
    match op:
        case ast.Add():
            return a + b
        case ast.Sub():
            return a - b
        case ast.FloorDiv() if b != 0:
            return sympy.floor(a / b)
        case ast.Mod() if b != 0:
            return sympy.Mod(a, b)
        case _:
            raise ValueError(f"{text!r} is no index expression")
