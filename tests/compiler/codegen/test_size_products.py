"""Formulas of sizes that need 64 bits in a kernel's text."""

from __future__ import annotations

import math

import pytest

from optfuse.compiler.codegen.size_products import exceed_int32, values
from optfuse.compiler.ir.nodes import Buffer
from optfuse.compiler.ir.size_decisions import Decisions
from optfuse.compiler.ir.sizes import Size


@pytest.mark.parametrize(
    ("text", "is_large"),
    [
        ("for r in range(0, ((s*s + 9) // 10), RBLOCK):\n        pass", True),
        ("inside = xindex < s*s", True),
        ("y = x / (s*s)", True),
        ("z = f(xindex % s, 32768*s)", True),
        ("x0 = xindex % s + 3 * s * yindex", False),
        ("x0 = tl.load(p + 1 * xindex, mask=xindex < 32767*s)", False),
        ("y = x * 2147483648.0 + s", False),
    ],
)
def test_parts_of_formulas_count(text: str, is_large: bool) -> None:
    size = Size.symbol("s", Decisions({"s": 1 << 16}, {"s": (2, math.inf)}))
    assert exceed_int32([f"    {text}"], {"s": size}) == is_large


def test_what_fits_at_the_hint_becomes_a_guard() -> None:
    decisions = Decisions({"s": 64}, {"s": (2, math.inf)})
    size = Size.symbol("s", decisions)
    found = values(["s"], [Buffer("a", "float32", (size, 3), (3, 1))])
    assert found == {"s": size}
    before = len(decisions.guards)
    assert not exceed_int32(["    x = tl.arange(0, s*s)"], found)
    assert len(decisions.guards) == before + 1
