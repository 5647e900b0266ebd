"""Floats that are computed of sizes: they keep how, beside their value at the hint."""

from __future__ import annotations

from typing import Self


class SizeFloat(float):
    """A float that is computed of sizes, with its value at the hint: ``operator`` ("add", "mul", "div") of two parts.

    Arithmetic sees the plain number and leaves no guard, as C code that takes a ``Size`` does.
    """

    operator: str
    parts: tuple[float, float]

    @classmethod
    def of(cls, operator: str, one: float, other: float) -> Self:
        """The sum, product or quotient of two numbers, sizes or floats of sizes."""
        a, b = (float(int.__int__(part)) if isinstance(part, int) else float(part) for part in (one, other))
        made = super().__new__(cls, a + b if operator == "add" else a * b if operator == "mul" else a / b)
        made.operator, made.parts = operator, (one, other)
        return made

    def __repr__(self) -> str:
        """The formula in Python's own syntax."""
        one, other = self.parts
        return f"({one!r} {_SIGNS[self.operator]} {other!r})"

    __str__ = __repr__


_SIGNS = {"add": "+", "mul": "*", "div": "/"}
