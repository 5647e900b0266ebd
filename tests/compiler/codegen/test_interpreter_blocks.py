"""Blocks for Triton's interpreter."""

from __future__ import annotations

import math

import pytest
import sympy

from optfuse.compiler.codegen.index_arithmetic import Axis
from optfuse.compiler.codegen.interpreter_blocks import LARGEST_TILE, interpreted_blocks


def axis(name: str, size: int, block: int) -> Axis:
    return Axis(name, ((sympy.Symbol(name), size),), block=block)


@pytest.mark.parametrize("columns", [131_073, 197_951, 1 << 21])
def test_long_rows_are_within_tritons_largest_tile(columns: int) -> None:
    found = interpreted_blocks((axis("y", 256, 16), axis("x", columns, 256)))
    assert math.prod(each.interpret_block for each in found) <= LARGEST_TILE
    assert all(each.interpret_block >= each.block for each in found)
