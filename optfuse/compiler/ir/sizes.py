"""Sizes that know their formulas: integers over symbols, whose comparisons record guards.

A ``Size`` is an int with the value that it has at the hint. Arithmetic keeps the formula. A comparison is decided by
the symbols' ranges where these suffice; else it is answered at the hint, and the relation becomes a guard of whatever
is built. ``hint(x)`` is the plain number, for choices that affect speed alone.

Limits: C code that takes an int without calling its methods (``range``, ``operator.index``, ``math.gcd``, numpy) sees
the hint and leaves no guard, so a build must be repeated at a second hint and its texts compared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Self

import sympy
from sympy.core.sympify import converter

from optfuse.compiler.ir.size_decisions import Decisions
from optfuse.compiler.ir.size_formula import Divided, Formula, add, evaluate, multiply, number, symbol


def is_data_size(name: str) -> bool:
    """Whether a symbol is a size that the values of tensors decide, which seldom comes again: torch's u0, u1, ..."""
    return re.fullmatch(r"u\d+", name) is not None


class Size(int):
    """An integer with a formula. Made by ``Size.symbol`` and by arithmetic; a constant formula is a plain int."""

    formula: Formula
    decisions: Decisions

    @classmethod
    def of(cls, formula: Formula, decisions: Decisions) -> Self:
        """The size that ``formula`` is."""
        made = super().__new__(cls, decisions.value(formula))
        made.formula, made.decisions = formula, decisions
        return made

    @classmethod
    def symbol(cls, name: str, decisions: Decisions) -> Self:
        """The symbol of that name as a size."""
        return cls.of(symbol(name), decisions)

    def _made(self, formula: Formula) -> int:
        constant = formula.constant
        return Size.of(formula, self.decisions) if constant is None else constant

    def __add__(self, other: Any) -> Any:
        return self._made(add(self.formula, _of(other))) if isinstance(other, int) else NotImplemented

    def __sub__(self, other: Any) -> Any:
        return self._made(add(self.formula, _of(other), -1)) if isinstance(other, int) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return self._made(add(_of(other), self.formula, -1)) if isinstance(other, int) else NotImplemented

    def __mul__(self, other: Any) -> Any:
        return self._made(multiply(self.formula, _of(other))) if isinstance(other, int) else NotImplemented

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> int:
        return self._made(add(number(0), self.formula, -1))

    def __pos__(self) -> int:
        return self

    def __abs__(self) -> int:
        return -self if self < 0 else self

    def __divmod__(self, other: Any) -> Any:
        return self._divided(self.formula, _of(other)) if isinstance(other, int) else NotImplemented

    def __rdivmod__(self, other: Any) -> Any:
        return self._divided(_of(other), self.formula) if isinstance(other, int) else NotImplemented

    def __floordiv__(self, other: Any) -> Any:
        return divmod(self, other)[0] if isinstance(other, int) else NotImplemented

    def __rfloordiv__(self, other: Any) -> Any:
        return self.__rdivmod__(other)[0] if isinstance(other, int) else NotImplemented

    def __mod__(self, other: Any) -> Any:
        return divmod(self, other)[1] if isinstance(other, int) else NotImplemented

    def __rmod__(self, other: Any) -> Any:
        return self.__rdivmod__(other)[1] if isinstance(other, int) else NotImplemented

    def _divided(self, numerator: Formula, divisor: Formula) -> tuple[int, int]:
        quotient, remainder = self.decisions.divided(numerator, divisor)
        return self._made(quotient), self._made(remainder)

    def _compared(self, other: Any, comparison: str, swapped: bool = False) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        a, b = (_of(other), self.formula) if swapped else (self.formula, _of(other))
        return self.decisions.decide(add(a, b, -1), comparison)

    def __eq__(self, other: object) -> Any:
        return self._compared(other, "==")

    def __ne__(self, other: object) -> Any:
        return self._compared(other, "!=")

    def __lt__(self, other: Any) -> Any:
        return self._compared(other, "<")

    def __ge__(self, other: Any) -> Any:
        return self._compared(other, ">=")

    def __gt__(self, other: Any) -> Any:
        return self._compared(other, "<", swapped=True)

    def __le__(self, other: Any) -> Any:
        return self._compared(other, ">=", swapped=True)

    def __bool__(self) -> bool:
        return self.decisions.decide(self.formula, "!=")

    def __hash__(self) -> int:
        """Not the hash of the number: in a dictionary a size matches sizes of its own formula and build alone."""
        return hash((self.formula, self.decisions.serial))

    def __int__(self) -> int:
        """The hint; the formula must have this value from then on."""
        value = int.__int__(self)
        self.decisions.decide(add(self.formula, number(value), -1), "==")
        return value

    def __lshift__(self, other: Any) -> Any:
        return self * (1 << other)

    def __rshift__(self, other: Any) -> Any:
        return self // (1 << other)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return int, (int(self),)

    def __repr__(self) -> str:
        return str(self.formula)

    __str__ = __repr__

    def __format__(self, specification: str) -> str:
        return format(int(self), specification) if specification else str(self.formula)


def _of(value: int) -> Formula:
    return value.formula if isinstance(value, Size) else number(value)


def hint(value: int) -> int:
    """The plain number of a size at the hint, without a guard: for choices that affect speed alone.

    Where a build is repeated at other hints, the number at the first ones: its choices are repeated as well.
    """
    if isinstance(value, Size) and value.decisions.chosen_at is not None:
        return evaluate(value.formula, value.decisions.chosen_at)
    return int.__int__(value)


def same(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two shapes are equal at every size: no guard is recorded, and shapes that are equal at some differ."""
    return len(one) == len(other) and all(_of(a) == _of(b) for a, b in zip(one, other, strict=True))


def equal(one: int, other: int) -> bool:
    """Whether two sizes are equal at every size: no guard is recorded, and sizes that are equal at some differ."""
    return _of(one) == _of(other) if isinstance(one, Size) or isinstance(other, Size) else one == other


def divides(divisor: int, value: int) -> bool:
    """Whether ``value`` is a multiple of ``divisor`` at every size; no guard is recorded."""
    rest = value % divisor
    return not isinstance(rest, Size) and rest == 0


def divisors(value: int) -> list[int]:
    """Divisors of a positive number, smallest first; of a size the plain numbers that divide it at every size."""
    factor = math.gcd(*(count for _, count in value.formula.terms)) if isinstance(value, Size) else value
    small = [d for d in range(1, math.isqrt(factor) + 1) if factor % d == 0]
    return sorted({*small, *(factor // d for d in small)})


def never_less(value: int, least: int) -> bool:
    """Whether ``value >= least`` at every size in the ranges; no guard is recorded."""
    difference = value - least
    if not isinstance(difference, Size):
        return difference >= 0
    return difference.decisions.bounds(difference.formula)[0] >= 0


def symbols_in(value: int) -> frozenset[str]:
    """The names of the symbols in a size; none in a plain number."""
    return frozenset(_names(value.formula)) if isinstance(value, Size) else frozenset()


def _names(formula: Formula) -> Iterator[str]:
    for monomial, _ in formula.terms:
        for atom in monomial:
            if isinstance(atom, str):
                yield atom
            else:
                yield from (*_names(atom.numerator), *_names(atom.divisor))


class SizeSymbol(sympy.Symbol):  # pyright: ignore[reportUntypedBaseClass]
    """A symbol of sizes inside of an index expression, where it stands beside iteration variables."""

    decisions: Decisions

    def __new__(cls, name: str, decisions: Decisions) -> Self:
        """The symbol of that name in one build; those of different builds differ."""
        made = sympy.Symbol.__xnew__(cls, name, integer=True, positive=True)
        made.decisions = decisions
        return made

    def _hashable_content(self) -> tuple[Any, ...]:
        return (*super()._hashable_content(), self.decisions.serial)


def size_in_index(expr: sympy.Expr) -> int | None:
    """The number or size that a part of an index is; None if it has iteration variables, or is no whole number."""
    if expr.is_Integer:
        return int(expr)
    if isinstance(expr, SizeSymbol):
        return Size.symbol(expr.name, expr.decisions)
    if isinstance(expr, sympy.floor):
        numerator, denominator = map(size_in_index, sympy.together(expr.args[0]).as_numer_denom())
        return None if numerator is None or denominator is None else numerator // denominator
    if not isinstance(expr, (sympy.Add, sympy.Mul, sympy.Mod, sympy.Pow)):
        return None
    parts = [size_in_index(part) for part in expr.args]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    match expr:
        case sympy.Add():
            return sum(known)
        case sympy.Mul():
            return math.prod(known)
        case sympy.Mod():
            return known[0] % known[1]
        case _:
            return None if isinstance(known[1], Size) or known[1] < 1 else math.prod(known[:1] * known[1])


def variables_of(expr: sympy.Expr) -> frozenset[sympy.Symbol]:
    """The symbols of an index that are no sizes."""
    return frozenset(symbol for symbol in expr.free_symbols if not isinstance(symbol, SizeSymbol))


def _sympy_of(formula: Formula, decisions: Decisions) -> sympy.Expr:
    total = sympy.Integer(0)
    for monomial, coefficient in formula.terms:
        total += sympy.Mul(sympy.Integer(coefficient), *(_sympy_atom(atom, decisions) for atom in monomial))
    return total


def _sympy_atom(atom: str | Divided, decisions: Decisions) -> sympy.Expr:
    if isinstance(atom, str):
        return SizeSymbol(atom, decisions)
    numerator, divisor = _sympy_of(atom.numerator, decisions), _sympy_of(atom.divisor, decisions)
    return sympy.floor(numerator / divisor) if atom.operator == "//" else sympy.Mod(numerator, divisor)


def _guarding(name: str) -> Any:
    """The method (or property) ``name`` of int for a size, whose value it guards first."""

    def read(self: Size) -> Any:
        return getattr(int(self), name)

    def call(self: Size, *arguments: Any) -> Any:
        return getattr(int(self), name)(*arguments)

    return call if callable(getattr(int, name)) else property(read)


#: Methods of int that have no formula.
_READ_THE_NUMBER = (
    "__and__ __ceil__ __float__ __floor__ __getnewargs__ __invert__ __or__ __pow__ __rand__ __rlshift__ __ror__ "
    "__round__ __rpow__ __rrshift__ __rtruediv__ __rxor__ __truediv__ __trunc__ __xor__ as_integer_ratio bit_count "
    "bit_length conjugate denominator imag is_integer numerator real to_bytes"
).split()

for _name in _READ_THE_NUMBER:
    if hasattr(int, _name):  # Python 3.12 has is_integer
        setattr(Size, _name, _guarding(_name))

# sympy asks its converters before an object's own method, and would take any subclass of int for its number
converter[Size] = lambda size: _sympy_of(size.formula, size.decisions)
