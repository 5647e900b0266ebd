"""Elements of tensors as functions of an index, and arithmetic on them: numbers, affine expressions, conditions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sympy

from optfuse.compiler.frontend.torch_internals.torch_sizes import expression_of, is_symbolic

Index = tuple[sympy.Expr, ...]


@dataclass(frozen=True, slots=True)
class Holds:
    """A truth value that varies: whether all ``expressions`` are 0 or more."""

    expressions: frozenset[sympy.Expr]


@dataclass(frozen=True, slots=True)
class Chosen:
    """``first`` where the condition holds, else ``second``."""

    condition: Holds
    first: float
    second: float


#: Whole numbers are sympy expressions of the index. None: not known.
Element = sympy.Expr | float | bool | Holds | Chosen | None


@dataclass(frozen=True, slots=True)
class Pattern:
    """A tensor's shape, and its element at an index of whole numbers."""

    shape: Index
    element: Callable[[Index], Element]

    def at(self, index: Index) -> Element:
        """The element at an index of a shape that this one is broadcast to."""
        own = index[len(index) - len(self.shape) :]
        return self.element(tuple(sympy.S.Zero if n == 1 else i for i, n in zip(own, self.shape, strict=True)))


class UnknownElementError(Exception):
    """An argument that is neither a pattern nor a number."""


def number(value: Any) -> sympy.Expr:
    """A whole number, or a symbolic size, as an expression."""
    return expression_of(value) if is_symbolic(value) else sympy.Integer(int(value))


def element_of(value: Any) -> Element:
    """A scalar argument as an element."""
    if isinstance(value, bool | float):
        return value
    return number(value)


def operand(value: Any) -> Callable[[Index], Element]:
    """An argument of a pointwise operator as a function of the index.

    Raises:
        UnknownElementError: If it is neither a pattern nor a number.
    """
    if isinstance(value, Pattern):
        return value.at
    if not isinstance(value, bool | int | float) and not is_symbolic(value):
        raise UnknownElementError
    scalar = element_of(value)
    return lambda index: scalar


def is_constant(found: Element) -> bool:
    """Whether an element is a number that does not depend on the index."""
    return isinstance(found, float) or (isinstance(found, sympy.Expr) and not found.free_symbols)


def arithmetic(function: Callable[[Any, Any], Any]) -> Callable[[Element, Element], Element]:
    """An arithmetic operation on elements; None where either is no number."""

    def computed(a: Element, b: Element) -> Element:
        if isinstance(a, bool | Holds | Chosen) or isinstance(b, bool | Holds | Chosen) or a is None or b is None:
            return None
        if isinstance(a, float) or isinstance(b, float):
            return function(float(a), float(b)) if is_constant(a) and is_constant(b) else None
        return sympy.expand(function(a, b))

    return computed


def compared(function: Callable[[Any, Any], bool], difference: Callable[[Any, Any], Any] | None) -> Callable[..., Any]:
    """A comparison; where it varies, it holds if ``difference`` is 0 or more."""

    def computed(a: Element, b: Element) -> Element:
        if isinstance(a, bool | Holds | Chosen) or isinstance(b, bool | Holds | Chosen) or a is None or b is None:
            return None
        if is_constant(a) and is_constant(b):
            return bool(function(a, b))
        if isinstance(a, float) or isinstance(b, float):
            return None
        apart = sympy.expand(a - b)
        if apart.is_Integer:
            return bool(function(apart, 0))
        if difference is None:
            return None
        held = sympy.expand(difference(a, b))
        known = held.is_nonnegative  # an index is: ``arange(n) >= 0`` holds everywhere
        return Holds(frozenset({held})) if known is None else bool(known)

    return computed


def both(a: Element, b: Element) -> Element:
    """Whether two truth values hold together."""
    if a is False or b is False:
        return False
    if a is True or b is True:
        return b if a is True else a
    return Holds(a.expressions | b.expressions) if isinstance(a, Holds) and isinstance(b, Holds) else None


def choose(condition: Element, a: Element, b: Element) -> Element:
    """``a`` where the condition holds, else ``b``; both must be constant where it varies."""
    if isinstance(condition, bool):
        return a if condition else b
    constant = is_constant(a) and is_constant(b)
    return Chosen(condition, float(a), float(b)) if isinstance(condition, Holds) and constant else None
