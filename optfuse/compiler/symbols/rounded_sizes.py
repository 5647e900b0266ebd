"""Whole numbers that torch computes of sizes by floats, such as ``floor(1.5 * s)``, as quotients of integers."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import sympy
from torch.utils._sympy.functions import (
    CeilToInt,
    FloatTrueDiv,
    FloorToInt,
    IntTrueDiv,
    RoundToInt,
    ToFloat,
    TruncToInt,
)

from optfuse.errors import CaptureError

ROUNDINGS = (FloorToInt, CeilToInt, TruncToInt, RoundToInt)

#: The largest numerator and denominator of a float that is read as a fraction, so that products stay below 2**53.
LARGEST = 1000


def rounded(expr: sympy.Basic, size_of: Callable[[sympy.Basic], int]) -> int:
    """The value of a rounding (one of ``ROUNDINGS``) as a size.

    Args:
        expr: The rounding.
        size_of: The size that a whole number is.

    Raises:
        CaptureError: If the number that is rounded is no product of a size and a float that is a fraction, and no
            quotient of sizes.
    """
    up, nearest = isinstance(expr, CeilToInt), isinstance(expr, RoundToInt)
    over, under = _quotient(expr.args[0], (False, True) if nearest else (up,), size_of)
    if up or (isinstance(expr, TruncToInt) and over < 0):
        return -(-over // under)
    below = over // under
    if nearest:  # one more if what is left is over a half, or is a half and the number below is odd
        return below + (2 * (over - below * under) + below % 2 + under - 1) // (2 * under)
    return below


def _quotient(expr: sympy.Basic, ups: tuple[bool, ...], size_of: Callable[[sympy.Basic], int]) -> tuple[int, int]:
    """Numerator and positive denominator, both whole: rounding their quotient is rounding the float.

    ``ups``: the ways in which numbers may be rounded, up (True) or down.
    """
    match expr:
        case ToFloat(args=(size,)):
            return size_of(size), 1
        case IntTrueDiv(args=(over, under)):
            return _signed(size_of(over), size_of(under))
        case FloatTrueDiv(args=(ToFloat(args=(over,)), sympy.Float() as under)) if float(under).is_integer():
            return _signed(size_of(over), int(under))
        case sympy.Mul(args=(sympy.Float() | sympy.Integer() as factor, ToFloat(args=(size,)))):
            (fraction,) = {fraction_of(float(factor), up) for up in ups}
            return size_of(size) * fraction.numerator, fraction.denominator
        case _:
            raise CaptureError(f"{expr} is rounded, which is no product of a size and a fraction")


def _signed(over: int, under: int) -> tuple[int, int]:
    return (-over, -under) if under < 0 else (over, under)


def fraction_of(value: float, up: bool) -> Fraction:
    """The fraction of small numbers whose products with sizes are rounded (up, or down) as those of a float are.

    A product that is whole in fractions must not be rounded to the next number, as ``ceil(1.1 * 10)`` is to 12. The
    float's product is off by the number times ``|1 - value / fraction|``; where that is at most half of the distance to
    the next float, it is the number. Products that are not whole are far enough from whole ones: they are below
    ``2**31 * LARGEST``. A fraction that is good both ways is good for rounding to the nearest, too: the product is
    the number where that is a half, and off by less than half of its distance to one elsewhere.

    Raises:
        CaptureError: If there is none.
    """
    fraction = Fraction(value).limit_denominator(LARGEST)
    off = (Fraction(value) - fraction) * (1 if up else -1)
    near = abs(Fraction(value) - fraction) * 2**52 <= fraction
    if near and 0 < fraction.numerator <= LARGEST and off * 2**54 <= fraction:
        return fraction
    raise CaptureError(f"{value} times a size is rounded, which is no fraction of small numbers")
