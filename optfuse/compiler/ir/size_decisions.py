"""The symbols of one build, and the guards that its comparisons of sizes have recorded."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from optfuse.compiler.ir.size_formula import (
    Divided,
    Formula,
    Interval,
    add,
    bounds,
    divide,
    evaluate,
    number,
    symbol,
)

_NEGATED = {"==": "!=", "!=": "==", "<": ">=", ">=": "<"}
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">=": operator.ge
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Relation:
    """``formula comparison 0``; the comparison is ``==``, ``!=``, ``<`` or ``>=``."""

    formula: Formula
    comparison: str

    def __str__(self) -> str:
        return f"{self.formula} {self.comparison} 0"

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether the relation holds at the given sizes."""
        return _COMPARE[self.comparison](evaluate(self.formula, values), 0)


@dataclass(slots=True)
class Decisions:
    """The symbols of one build, and the guards that it has recorded.

    ``ranges`` begin as torch's and narrow with each guard on one symbol, so that what follows from a guard is decided.
    """

    hints: dict[str, int]
    ranges: dict[str, Interval]
    guards: dict[Relation, None] = field(default_factory=dict)
    #: what the frontend's tracer has for each symbol
    traced: Mapping[str, Any] = field(default_factory=dict)
    #: the sizes at which choices for speed are made, if not at the hints: those of the build that is checked
    chosen_at: Mapping[str, int] | None = None
    #: sizes of different builds never match in a dictionary: what is cached of one has recorded that one's guards
    serial: int = field(default_factory=count().__next__)
    #: what is known under the present ranges: bounds of formulas, quotients and remainders
    _bounds: dict[Formula, Interval] = field(default_factory=dict, compare=False, repr=False)
    _divisions: dict[tuple[Formula, Formula], tuple[Formula, Formula]] = field(
        default_factory=dict, compare=False, repr=False
    )
    _values: dict[Formula, int] = field(default_factory=dict, compare=False, repr=False)

    def decide(self, formula: Formula, comparison: str) -> bool:
        """Whether ``formula comparison 0``: by the ranges, else at the hint with a guard."""
        known = self.known(formula, comparison)
        if known is not None:
            return known
        answer = self.at_hint(formula, comparison)
        guard = Relation(formula, comparison if answer else _NEGATED[comparison])
        if guard not in self.guards:
            self.guards[guard] = None
            self._narrow(guard)
        return answer

    def at_hint(self, formula: Formula, comparison: str) -> bool:
        """Whether ``formula comparison 0`` at the hint, without a guard."""
        return _COMPARE[comparison](self.value(formula), 0)

    def require(self, name: str, value: int) -> None:
        """Make it a guard that a symbol has this value."""
        guard = Relation(add(symbol(name), number(value), -1), "==")
        self.guards[guard] = None
        self._narrow(guard)

    def narrow(self, ranges: Mapping[str, Interval]) -> None:
        """Take over what guards of another build have left of the ranges."""
        for name, (low, high) in ranges.items():
            least, most = self.ranges[name]
            self.ranges[name] = max(least, low), min(most, high)
        self._forget()

    def bounds(self, formula: Formula) -> Interval:
        """An interval that holds the formula's value wherever the symbols are in their ranges."""
        found = self._bounds.get(formula)
        if found is None:
            found = self._bounds[formula] = bounds(formula, self.ranges)
        return found

    def value(self, formula: Formula) -> int:
        """The formula's value at the hints."""
        found = self._values.get(formula)
        if found is None:
            found = self._values[formula] = evaluate(formula, self.hints)
        return found

    def divided(self, numerator: Formula, divisor: Formula) -> tuple[Formula, Formula]:
        """Quotient and remainder; guards say that the divisor is not 0, and where a numerator is below 0.

        Raises:
            ZeroDivisionError: If the divisor is 0 at the hints.
        """
        found = self._divisions.get((numerator, divisor))
        if found is None:
            found = self._divided(numerator, divisor)
            self._divisions[numerator, divisor] = found
        return found

    def _divided(self, numerator: Formula, divisor: Formula) -> tuple[Formula, Formula]:
        if self.decide(divisor, "=="):
            raise ZeroDivisionError(f"{numerator} divided by {divisor}, which is 0 at these sizes")
        quotient, remainder = divide(numerator, divisor, self.ranges)
        atoms = [atom for monomial, _ in quotient.terms for atom in monomial if isinstance(atom, Divided)]
        for atom in atoms:
            if self.bounds(atom.numerator)[0] < 0 and self.decide(atom.numerator, "<"):
                quotient, remainder = divide(numerator, divisor, self.ranges, below=True)
        return quotient, remainder

    def known(self, formula: Formula, comparison: str) -> bool | None:
        """Whether ``formula comparison 0`` wherever the symbols are in their ranges; None where that differs."""
        low, high = self.bounds(formula)
        match comparison:
            case "<" | ">=":
                below = True if high < 0 else False if low >= 0 else None
                return below if below is None or comparison == "<" else not below
            case _:
                equal = False if low > 0 or high < 0 else True if low == high == 0 else None
                return equal if equal is None or comparison == "==" else not equal

    def _narrow(self, guard: Relation) -> None:
        (monomial, factor), *rest = guard.formula.terms
        offset = rest[0][1] if len(rest) == 1 and not rest[0][0] else 0 if not rest else None
        if offset is None or len(monomial) != 1 or not isinstance(monomial[0], str):
            return
        low, high = self.ranges[monomial[0]]
        # factor * s + offset is compared with 0; -(-a // b) rounds up
        match guard.comparison, factor > 0:
            case "==", _:
                low = high = -offset // factor
            case "<", True:
                high = min(high, -(offset // factor) - 1)
            case ">=", True:
                low = max(low, -(offset // factor))
            case "<", False:
                low = max(low, offset // -factor + 1)
            case ">=", False:
                high = min(high, offset // -factor)
            case _:
                return
        self.ranges[monomial[0]] = low, high
        self._forget()

    def _forget(self) -> None:
        """Forget what was known under other ranges."""
        self._bounds.clear()
        self._divisions.clear()

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether what was built is valid at the given sizes."""
        return all(guard.holds(values) for guard in self.guards)
