"""Formulas of sizes that need 64 bits in a kernel's text."""

from __future__ import annotations

import math

import pytest

from optfuse.compiler.codegen.size_products import need_64_bits
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
    _, buffers = sized(1 << 16)
    assert need_64_bits([f"    {text}"], ["s"], buffers) == is_large


def test_what_fits_at_the_hint_becomes_a_guard() -> None:
    decisions, buffers = sized(64)
    assert not need_64_bits(["    x = tl.arange(0, s*s)"], ["s"], buffers)
    assert len(decisions.guards) == 1


def test_numbers_that_are_no_sizes_of_tensors_may_be_large() -> None:
    text, buffers = ["    y = x * (n*n)"], [Buffer("a", "float32", (4,), (1,))]
    assert need_64_bits(text, ["n"], buffers)
    assert not need_64_bits(text, [], buffers)


def sized(value: int) -> tuple[Decisions, list[Buffer]]:
    """A tensor of a size s and three columns."""
    decisions = Decisions({"s": value}, {"s": (2, math.inf)})
    return decisions, [Buffer("a", "float32", (Size.symbol("s", decisions), 3), (3, 1))]
