"""Tile axes, and index arithmetic as linear forms over their digits.

An index is a linear form over digits, and over named values where it is not affine in digits. Neighbouring digits of
one axis with matching coefficients are merged into a run, so that a contiguous access uses ``x`` itself and a division
appears only where an access needs one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import sympy

from optfuse.compiler.ir.sizes import Size, divides, size_in_index, variables_of
from optfuse.errors import InvalidGraphError

Bounds = tuple[int, int]
Walk = Literal["parallel", "whole", "looped"]

INT32_END = 1 << 31


@dataclass(frozen=True, slots=True)
class Axis:
    """A dimension of a kernel's tile: ``name`` is "x", "y" or "r", ``digits`` are (symbol, size), major to minor.

    A parallel axis is divided among programs, a whole one lies in one block, and each program loops over the blocks of
    a looped one. ``block`` and ``interpret_block`` are powers of two, for a GPU and for Triton's interpreter.
    ``trimmed``: the axis stands for its whole blocks only, so that all lanes are points.
    """

    name: str
    digits: tuple[tuple[sympy.Symbol, int], ...]
    walk: Walk = "parallel"
    block: int = 1
    interpret_block: int = 1
    trimmed: bool = False

    @property
    def size(self) -> int:
        """The number of points of the axis."""
        return math.prod(size for _, size in self.digits)

    @property
    def constant(self) -> str:
        """The kernel's parameter that holds the block size."""
        return f"{self.name.upper()}BLOCK"

    @property
    def index(self) -> str:
        """The variable that holds the flat positions of a block's lanes."""
        return f"{self.name}index"

    @property
    def mask(self) -> str:
        """The variable that is true for the lanes of a block that are points of the axis."""
        return f"{self.name}mask"

    @property
    def masked(self) -> bool:
        """Whether the last block has lanes beyond the end of the axis."""
        rest = self.size % self.block
        return not self.trimmed and (isinstance(rest, Size) or rest != 0)

    @property
    def wide(self) -> bool:
        """Whether flat positions, lanes beyond the end included, need 64 bits."""
        return self.size + max(self.block, self.interpret_block) >= INT32_END


@dataclass(frozen=True, slots=True)
class Named:
    """An integer that a variable of the kernel holds: an indirect index, a quotient or a remainder."""

    text: str
    axes: frozenset[str]
    bounds: Bounds | None = None
    wide: bool = False


Atom = sympy.Symbol | Named


@dataclass(frozen=True, slots=True)
class Linear:
    """``sum(coefficient * atom) + constant``; atoms are digits or named values, no coefficient is 0."""

    terms: Mapping[Atom, int] = field(default_factory=dict)
    constant: int = 0

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """This form plus ``factor`` times another."""
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            terms[atom] = terms.get(atom, 0) + factor * coefficient
        return Linear({a: c for a, c in terms.items() if c}, self.constant + factor * other.constant)

    def bounds(self, sizes: Mapping[sympy.Symbol, int]) -> Bounds | None:
        """The least and the greatest value; None when a named value has no bounds."""
        low = high = self.constant
        for atom, coefficient in self.terms.items():
            interval = atom.bounds if isinstance(atom, Named) else (0, sizes[atom] - 1)
            if interval is None:
                return None
            ends = sorted((coefficient * interval[0], coefficient * interval[1]))
            low, high = low + ends[0], high + ends[1]
        return low, high


#: Makes a form of a term that is not affine: ("floor" or "mod", numerator, divisor).
Opaque = Callable[[str, Linear, int], Linear]


def linearize(expr: sympy.Expr, env: Mapping[sympy.Symbol, Linear], opaque: Opaque) -> Linear:
    """An index expression as a linear form. ``env`` gives the form of every symbol.

    Raises:
        InvalidGraphError: A term outside the index grammar, or a symbol without a form.
    """
    total = Linear()
    for coefficient, rest in _terms(expr):
        if rest is None:
            total = total.plus(Linear(constant=coefficient))
        elif rest.is_Symbol:
            if rest not in env:
                raise InvalidGraphError(f"index {expr} uses {rest}, which is no variable of this kernel")
            total = total.plus(env[rest], coefficient)
        else:
            kind, numerator, divisor = _division(rest)
            inner = linearize(numerator, env, opaque)
            if inner.terms:
                quotient = opaque(kind, inner, divisor)
            else:
                quotient = Linear(constant=inner.constant // divisor if kind == "floor" else inner.constant % divisor)
            total = total.plus(quotient, coefficient)
    return total


@lru_cache(maxsize=65536)
def _terms(expr: sympy.Expr) -> tuple[tuple[int, sympy.Expr | None], ...]:
    """(coefficient, symbol or division) pairs, and (constant, None)."""
    found: list[tuple[int, sympy.Expr | None]] = []
    for term in sympy.Add.make_args(expr):
        factors = sympy.Mul.make_args(term)
        moving = [factor for factor in factors if variables_of(factor)]
        factor = size_in_index(sympy.Mul(*(factor for factor in factors if factor not in moving)))
        if factor is not None and not moving:
            found.append((factor, None))
        elif factor is not None and len(moving) == 1 and isinstance(moving[0], sympy.Symbol | sympy.floor | sympy.Mod):
            found.append((factor, moving[0]))
        else:
            expanded = sympy.expand(term)
            if expanded == term:
                raise InvalidGraphError(f"index term {term} is outside the grammar (+, *, floor of a quotient, Mod)")
            found.extend(_terms(expanded))
    return tuple(found)


def _integer(value: sympy.Expr, expr: sympy.Expr) -> int:
    size = size_in_index(value)
    if size is None:
        raise InvalidGraphError(f"index {expr} has a coefficient {value} that is no integer")
    return size


def _division(expr: sympy.Expr) -> tuple[str, sympy.Expr, int]:
    if isinstance(expr, sympy.floor):
        numerator, denominator = sympy.together(expr.args[0]).as_numer_denom()
        return "floor", numerator, _integer(denominator, expr)
    return "mod", expr.args[0], _integer(expr.args[1], expr)


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring digits of one axis merged to ``flat // below % size`` (``size`` None: up to the axis' end)."""

    axis: Axis
    below: int
    size: int | None
    coefficient: int

    @property
    def uniform(self) -> bool:
        """Whether all lanes of a program have the same value: no block of the axis spans two values."""
        blocks = (self.axis.block, self.axis.interpret_block)
        return self.axis.walk == "parallel" and max(blocks) > 1 and all(divides(block, self.below) for block in blocks)

    def of(self, position: str) -> str:
        """The run's value as an expression of a flat position on the axis."""
        text = position
        if self.below > 1:
            text += f" // {self.below}"
        if self.size is not None:
            text += f" % {self.size}"
        return text


def starts(axes: Iterable[Axis]) -> dict[str, str]:
    """By parallel axis: the flat position of a program's first lane. The last axis of the grid varies fastest."""
    parallel = [axis for axis in axes if axis.walk == "parallel"]
    found: dict[str, str] = {}
    for k, axis in enumerate(parallel):
        number = "tl.program_id(0)"
        if len(parallel) == 2:
            number += f" {'//' if k == 0 else '%'} tl.cdiv({parallel[1].size}, {parallel[1].constant})"
        found[axis.name] = f"{f'({number}).to(tl.int64)' if axis.wide else number} * {axis.constant}"
    return found


def runs(form: Linear, axes: Iterable[Axis]) -> list[Run]:
    """The digits of a form as runs, axis by axis, minor runs first."""
    found: list[Run] = []
    for axis in axes:
        below, mine = 1, list[Run]()
        for symbol, size in reversed(axis.digits):
            coefficient = form.terms.get(symbol, 0)
            last = mine[-1] if mine else None
            if coefficient and last is not None and _continues(last, below, coefficient):
                mine[-1] = Run(axis, last.below, size * (last.size or 1), last.coefficient)
            elif coefficient:
                mine.append(Run(axis, below, size, coefficient))
            below *= size
        if mine and mine[-1].size is not None and mine[-1].below * mine[-1].size == below:
            mine[-1] = Run(axis, mine[-1].below, None, mine[-1].coefficient)
        found += mine
    return found


def _continues(run: Run, below: int, coefficient: int) -> bool:
    """Whether a digit is the next major digit of a run."""
    return run.size is not None and run.below * run.size == below and coefficient == run.coefficient * run.size
