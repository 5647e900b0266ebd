"""Formulas of sizes: integer polynomials over symbols, with quotients and remainders as further atoms.

A formula is canonical under ``+`` and ``*``, so that two equal polynomials are equal as data. Quotients and remainders
are those of Python (floor division). Plain data without sympy, since a compile makes tens of thousands of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

#: Both ends included; an end is ``math.inf`` or ``-math.inf`` where nothing bounds it.
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Divided:
    """The quotient or the remainder of two formulas."""

    operator: Literal["//", "%"]
    numerator: Formula
    divisor: Formula
    _text: str = field(init=False, compare=False, repr=False)
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_text", f"({self.numerator} {self.operator} {self.divisor})")
        object.__setattr__(self, "_hash", hash((self.operator, self.numerator, self.divisor)))

    def __str__(self) -> str:
        return self._text

    def __hash__(self) -> int:
        """Computed once: formulas nest, and are looked up far more often than they are made."""
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Divided, (self.operator, self.numerator, self.divisor)


Atom = str | Divided
Monomial = tuple[Atom, ...]


@dataclass(frozen=True, slots=True)
class Formula:
    """A sum of terms (atoms multiplied, coefficient), sorted by text; no coefficient is 0."""

    terms: tuple[tuple[Monomial, int], ...]
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self.terms))

    def __hash__(self) -> int:
        """Computed once, as that of ``Divided``."""
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Formula, (self.terms,)

    def __str__(self) -> str:
        """The formula in Python's own syntax, in parentheses unless it is one atom or one nonnegative number."""
        text = ""
        for monomial, coefficient in self.terms:
            size, factors = abs(coefficient), [str(atom) for atom in monomial]
            sign = (" - " if coefficient < 0 else " + ") if text else ("-" if coefficient < 0 else "")
            text += sign + "*".join([*factors, str(size)] if size != 1 or not factors else factors)
        text = text or "0"
        match self.terms:
            case [((Divided(),), 1)]:
                return text  # in parentheses already
            case _:
                return text if text.isidentifier() or text.isdigit() else f"({text})"

    @property
    def constant(self) -> int | None:
        """The number that the formula is, None if it has a symbol."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None


def symbol(name: str) -> Formula:
    """The formula of one symbol."""
    return Formula((((name,), 1),))


def number(value: int) -> Formula:
    """The formula of a number."""
    return Formula((((), value),) if value else ())


#: Results of arithmetic that are kept: a compile repeats the same few thousand operations.
_KEPT = 1 << 16


@lru_cache(_KEPT)
def add(a: Formula, b: Formula, factor: int = 1) -> Formula:
    """``a + factor * b``."""
    if not b.terms:
        return a
    terms = dict(a.terms)
    for monomial, coefficient in b.terms:
        terms[monomial] = terms.get(monomial, 0) + factor * coefficient
    return _formula(terms)


@lru_cache(_KEPT)
def multiply(a: Formula, b: Formula) -> Formula:
    """The product, expanded."""
    terms: dict[Monomial, int] = {}
    for left, x in a.terms:
        for right, y in b.terms:
            monomial = tuple(sorted((*left, *right), key=str))
            terms[monomial] = terms.get(monomial, 0) + x * y
    return _formula(terms)


def divide(a: Formula, b: Formula, ranges: Mapping[str, Interval], *, below: bool = False) -> tuple[Formula, Formula]:
    """Quotient and remainder; the caller has made sure that ``b`` is not 0.

    A quotient whose numerator is below 0 (known from the ranges, or ``below``) is written as one of a numerator that is
    not, by a divisor that is taken for positive: kernels round quotients toward 0, and formulas down.

    Terms of ``a`` that ``b`` divides whatever the sizes are leave the division: ``(768*s + 5) // 768`` is ``s`` and the
    remainder is 5.
    """
    if a == b:
        return number(1), number(0)
    whole, rest = _divisible(a, b)
    if not rest.terms:
        return whole, rest
    low, high = bounds(rest, ranges)
    divisor = b.constant
    if divisor is not None and rest.constant is not None:
        return add(whole, number(rest.constant // divisor)), number(rest.constant % divisor)
    if low >= 0 and high < bounds(b, ranges)[0]:
        return whole, rest
    if high < 0 and bounds(add(rest, b), ranges)[0] >= 0:  # from -b to -1: the multiple below is one less
        return add(whole, number(-1)), add(rest, b)
    over = add(add(b, number(-1)), rest, -1)
    if high < 0 or below or (low < 0 and bounds(over, ranges)[0] >= 0):  # floor(n / b) == -((b - 1 - n) // b)
        turned = Formula((((Divided("//", over, b),), 1),))
        return add(whole, turned, -1), add(rest, multiply(b, turned))
    quotient = Formula((((_quotient_atom(rest, b),), 1),))
    return add(whole, quotient), Formula((((Divided("%", rest, b),), 1),))


def _divisible(a: Formula, b: Formula) -> tuple[Formula, Formula]:
    """(q, r) with ``a == q * b + r``: q from the terms that have multiples of ``b``, a single term, by themselves.

    What is left of a number is not negative, so that ``(s - 1) // 2`` and ``(s + 1) // 2 - 1`` are equal as data.
    """
    if len(b.terms) != 1:
        exact = _exact_quotient(a, b)
        return (number(0), a) if exact is None else (exact, number(0))
    factors, size = b.terms[0]
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, coefficient in a.terms:
        left = _without(monomial, factors)
        if left is None:
            rest[monomial] = coefficient
        else:
            whole[left], rest[monomial] = divmod(coefficient, size)
            if coefficient < 0 and monomial and rest[monomial]:  # -s // 2 is -((s + 1) // 2) later, and not s // 2 - s
                whole[left], rest[monomial] = whole[left] + 1, rest[monomial] - size
    return _formula(whole), _formula(rest)


def _exact_quotient(a: Formula, b: Formula) -> Formula | None:
    """The polynomial q with ``a == q * b``; None if long division leaves a remainder."""
    factors, size = max(b.terms, key=lambda term: (len(term[0]), [str(atom) for atom in term[0]]))
    quotient = number(0)
    for _ in range(len(a.terms) * len(b.terms)):
        if not a.terms:
            return quotient
        leading, coefficient = max(a.terms, key=lambda term: (len(term[0]), [str(atom) for atom in term[0]]))
        left = _without(leading, factors)
        if left is None or coefficient % size:
            return None
        step = _formula({left: coefficient // size})
        quotient, a = add(quotient, step), add(a, multiply(step, b), -1)
    return quotient if not a.terms else None


def _without(monomial: Monomial, factors: Monomial) -> Monomial | None:
    left = list(monomial)
    for factor in factors:
        if factor not in left:
            return None
        left.remove(factor)
    return tuple(left)


def _formula(terms: Mapping[Monomial, int]) -> Formula:
    kept = {monomial: coefficient for monomial, coefficient in terms.items() if coefficient}
    if len(kept) <= 1:
        return Formula(tuple(kept.items()))
    for monomial in [each for each in kept if not all(isinstance(atom, str) for atom in each)]:
        joined = _joined_halves(monomial, kept) or _without_remainder(monomial, kept)
        if joined is not None:
            return add(*joined)
    ordered = sorted(kept.items(), key=lambda term: (not term[0], [str(atom) for atom in term[0]]))
    return Formula(tuple(ordered))


def _rounds_half_up(atom: Atom) -> bool:
    """Whether an atom is ``(x + 1) // 2``, with an odd number."""
    if isinstance(atom, str) or atom.operator != "//" or atom.divisor.constant != 2:
        return False
    return any(not monomial and number % 2 for monomial, number in atom.numerator.terms)


def _joined_halves(monomial: Monomial, terms: Mapping[Monomial, int]) -> tuple[Formula, Formula] | None:
    """Two summands of the terms where ``(x + 1) // 2`` and ``x // 2`` occur equally often, which are ``x`` together."""
    atom = next((atom for atom in monomial if _rounds_half_up(atom)), None)
    if not isinstance(atom, Divided):
        return None
    whole, rest = add(atom.numerator, number(1), -1), _without(monomial, (atom,)) or ()
    other = tuple(sorted((_quotient_atom(whole, atom.divisor), *rest), key=str))
    if other == monomial or terms.get(other) != terms[monomial]:
        return None
    left = {each: count for each, count in terms.items() if each not in (monomial, other)}
    return _formula(left), multiply(whole, Formula(((rest, terms[monomial]),)))


def _without_remainder(monomial: Monomial, terms: Mapping[Monomial, int]) -> tuple[Formula, Formula] | None:
    """Two summands of the terms where ``x`` and ``x % n`` cancel but for a multiple, ``n * (x // n)``."""
    for atom in monomial:
        if isinstance(atom, str) or atom.operator != "%" or not atom.divisor.constant or len(atom.numerator.terms) != 1:
            continue
        rest = _without(monomial, (atom,)) or ()
        factors, size = atom.numerator.terms[0]
        other = tuple(sorted((*factors, *rest), key=str))
        if terms.get(other) == -terms[monomial] * size:
            left = {each: count for each, count in terms.items() if each not in (monomial, other)}
            multiple = -terms[monomial] * atom.divisor.constant
            whole = tuple(sorted((_quotient_atom(atom.numerator, atom.divisor), *rest), key=str))
            return _formula(left), Formula(((whole, multiple),))
    return None


def _quotient_atom(a: Formula, b: Formula) -> Divided:
    """``a // b``; a quotient by a number, divided by a number, is one quotient."""
    match a.terms:
        case [([Divided("//", numerator, divisor)], 1)]:
            inner, outer = divisor.constant or 0, b.constant or 0
            if inner > 0 and outer > 0:
                return Divided("//", numerator, number(inner * outer))
        case _:
            pass
    return Divided("//", a, b)


def bounds(formula: Formula, ranges: Mapping[str, Interval]) -> Interval:
    """An interval that holds the formula's value wherever the symbols are in their ranges."""
    low, high = _bounds_of_terms(formula, ranges)
    if low <= 0 <= high and len(formula.terms) > 1:
        least, most = _bounds_from_least(formula, ranges)
        for other in (_with_quotients(formula), _with_remainders(formula)):
            if other != formula:
                ends = _bounds_of_terms(other, ranges)
                least, most = max(least, ends[0]), min(most, ends[1])
        return max(low, least), min(high, most)
    return low, high


def _bounds_of_terms(formula: Formula, ranges: Mapping[str, Interval]) -> Interval:
    """The sum of the terms' own bounds."""
    low, high = 0.0, 0.0
    for monomial, coefficient in formula.terms:
        ends: Interval = (coefficient, coefficient)
        for atom in monomial:
            ends = _product(ends, ranges[atom] if isinstance(atom, str) else _divided_bounds(atom, ranges))
        low, high = low + ends[0], high + ends[1]
    return low, high


def _with_quotients(formula: Formula) -> Formula:
    """The formula with ``a - n * (a // n)`` for remainders by a number: ``s - s % 4`` is never below 0."""
    return _rewritten(formula, "%", "//")


def _with_remainders(formula: Formula) -> Formula:
    """The formula with ``a - a % n`` for multiples ``n * (a // n)``: ``4 * ((s + 3) // 4)`` is never below ``s``."""
    return _rewritten(formula, "//", "%")


def _rewritten(formula: Formula, old: Literal["//", "%"], new: Literal["//", "%"]) -> Formula:
    made = number(0)
    for monomial, coefficient in formula.terms:
        term = Formula(((monomial, coefficient),))
        for k, atom in enumerate(monomial):
            by = None if isinstance(atom, str) or atom.operator != old else atom.divisor.constant
            if isinstance(atom, Divided) and by and (old == "%" or coefficient % by == 0):
                other = multiply(Formula((((Divided(new, atom.numerator, atom.divisor),), 1),)), number(-1))
                other = add(atom.numerator, other if old == "//" else multiply(other, number(by)))
                rest = _formula({(*monomial[:k], *monomial[k + 1 :]): coefficient if old == "%" else coefficient // by})
                term = multiply(rest, other)
                break
        made = add(made, term)
    return made


def _bounds_from_least(formula: Formula, ranges: Mapping[str, Interval]) -> Interval:
    """Bounds of a polynomial seen from its symbols' least values: ``s*t - s`` is 0 or more from s = t = 2 on."""
    shifted = number(0)
    for monomial, coefficient in formula.terms:
        product = number(coefficient)
        for atom in monomial:
            if not isinstance(atom, str) or math.isinf(ranges[atom][0]):
                return -math.inf, math.inf
            product = multiply(product, add(symbol(atom), number(int(ranges[atom][0]))))
        shifted = add(shifted, product)
    constant = next((value for monomial, value in shifted.terms if not monomial), 0)
    moving = [value for monomial, value in shifted.terms if monomial]
    return (
        constant if all(value > 0 for value in moving) else -math.inf,
        constant if all(value < 0 for value in moving) else math.inf,
    )


def _product(a: Interval, b: Interval) -> Interval:
    corners = [0 if 0 in (x, y) else x * y for x in a for y in b]
    return min(corners), max(corners)


def _divided_bounds(atom: Divided, ranges: Mapping[str, Interval]) -> Interval:
    divisor = bounds(atom.divisor, ranges)
    if divisor[0] <= 0:
        return -math.inf, math.inf
    if atom.operator == "%":
        return 0, divisor[1] - 1
    low, high = bounds(atom.numerator, ranges)
    least = min(_quotient_of_ends(low, d) for d in divisor)
    return least, max(_quotient_of_ends(high, d) for d in divisor)


def _quotient_of_ends(a: float, b: float) -> float:
    if math.isinf(b):
        return -1 if a < 0 else 0 if not math.isinf(a) else a
    return a if math.isinf(a) else a // b


def evaluate(formula: Formula, values: Mapping[str, int]) -> int:
    """The formula's value at the given sizes."""
    total = 0
    for monomial, coefficient in formula.terms:
        for atom in monomial:
            coefficient *= values[atom] if isinstance(atom, str) else _divided(atom, values)
        total += coefficient
    return total


def _divided(atom: Divided, values: Mapping[str, int]) -> int:
    numerator, divisor = evaluate(atom.numerator, values), evaluate(atom.divisor, values)
    return numerator // divisor if atom.operator == "//" else numerator % divisor
