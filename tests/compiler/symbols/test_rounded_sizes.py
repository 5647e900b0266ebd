"""Whole numbers that are computed of sizes by floats: fractions stand for the floats where no rounding differs."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from optfuse.compiler.symbols.rounded_sizes import fraction_of
from optfuse.errors import CaptureError

QUOTIENTS = sorted({Fraction(p, q) for p in range(1, 24) for q in range(1, 24)})


@pytest.mark.parametrize("up", [False, True], ids=["down", "up"])
def test_products_of_a_fraction_are_rounded_as_those_of_its_float(up: bool) -> None:
    taken = 0
    for quotient in QUOTIENTS:
        value = float(quotient)
        try:
            fraction = fraction_of(value, up)
        except CaptureError:
            continue
        taken += 1
        assert fraction == quotient
        multiples = [fraction.denominator * k for k in (1, 3, 2**10 - 1, 2**20 + 1, 77_777)]
        for size in (*range(1, 120), *multiples, 2**31 - 1):
            wanted = math.ceil(value * size) if up else math.floor(value * size)
            assert wanted == (-(-size * fraction.numerator // fraction.denominator) if up else size * fraction // 1)
    assert taken > len(QUOTIENTS) * 0.7


@pytest.mark.parametrize(("value", "up"), [(1.1, True), (0.7, False), (math.pi, False), (-1.5, False), (1e-9, True)])
def test_floats_whose_products_are_rounded_to_other_numbers_are_refused(value: float, up: bool) -> None:
    with pytest.raises(CaptureError, match="no fraction of small numbers"):
        fraction_of(value, up)
