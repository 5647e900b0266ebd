"""Torch's expressions of sizes as numbers of the loop IR: they are what Python computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy
from torch.utils._sympy.functions import BitwiseFn_bitwise_and, FloatTrueDiv, IntTrueDiv, RoundToInt, ToFloat

from optfuse.compiler.symbols.traced_sizes import size_of_expression
from optfuse.errors import CaptureError

s = sympy.Symbol("s", integer=True)
CASES: list[tuple[Any, Callable[[int], int]]] = [
    (sympy.Abs(s - 9), lambda n: abs(n - 9)),
    *(
        (BitwiseFn_bitwise_and(s - 50, sympy.Integer(mask)), lambda n, m=mask: (n - 50) & m)
        for mask in (0, 1, 7, -1, -8)
    ),
    (BitwiseFn_bitwise_and(sympy.Integer(3), s), lambda n: 3 & n),
    *(
        (RoundToInt(IntTrueDiv(s - 50, sympy.Integer(k))), lambda n, k=k: round((n - 50) / k))
        for k in (1, 2, 3, 4, 6, -4)
    ),
    (RoundToInt(FloatTrueDiv(ToFloat(s), sympy.Float(8.0))), lambda n: round(n / 8.0)),
    *((RoundToInt(sympy.Float(f) * ToFloat(s)), lambda n, f=f: round(n * f)) for f in (0.5, 0.25, 1.5, 0.125)),
]


@pytest.mark.parametrize(("expression", "wanted"), CASES, ids=[str(expression) for expression, _ in CASES])
def test_sizes_are_what_python_computes(expression: Any, wanted: Callable[[int], int]) -> None:
    for n in (*range(200), 2**31 - 1, 2**31 - 2, 2**31 - 3):
        assert size_of_expression(expression, {s: n}) == wanted(n), n


@pytest.mark.parametrize("mask", [5, -6, 2, s + 1])
def test_other_bits_of_a_size_are_refused(mask: Any) -> None:
    with pytest.raises(CaptureError, match="which are not its last ones or all but those"):
        size_of_expression(BitwiseFn_bitwise_and(s, sympy.sympify(mask)), {s: 12})
