"""Random numbers four at a time: where they come so, and that they are the same."""

from __future__ import annotations

import pytest
import torch

from optfuse.compiler.codegen.triton_kernel import emit_kernel
from optfuse.compiler.ir.nodes import Iota, Load
from tests.compiler.codegen.running import check, graph_of, inputs_for
from tests.compiler.codegen.specs import F32, Kernel, Result, call, i0, i1, i2, r0

SEED = {"seed": torch.tensor([(1 << 40) + 5])}
SINGLY, ALONG, DOWN = "uniform_number(", "uniform_numbers(", "uniform_numbers_down("


def numbers(index):
    return call("rand", Load("seed", i0 * 0, "int64"), Iota(index, "int64"), dtype=F32)


def pointwise(x, index, stride=()):
    k = Kernel(x)
    k.input("seed", 1, dtype="int64")
    if stride:
        k.buffer("out", *x, stride=stride)
    k.pointwise("out", numbers(index))
    return k.spec("out"), k.buffers


def noisy_rows(rows, columns):
    """Rows plus noise, less their sums."""
    k = Kernel((rows,), (columns,))
    k.input("seed", 1, dtype="int64")
    k.input("x", rows, columns)
    k.pointwise("noisy", call("add", k.load("x", i0, i1), numbers(columns * i0 + i1)))
    k.reduce("sum", k.load("noisy", i0, r0), ("total", Result(0, F32)))
    k.pointwise("out", call("sub", k.load("noisy", i0, i1), k.load("total", i0)))
    return k.spec("out"), k.buffers


def noisy_columns(rows, columns):
    """The sums of columns of noise."""
    k = Kernel((columns,), (rows,))
    k.input("seed", 1, dtype="int64")
    k.input("x", rows, columns)
    value = call("add", k.load("x", r0, i0), numbers(columns * r0 + i0))
    k.reduce("sum", value, ("total", Result(0, F32)))
    return k.spec("total"), k.buffers


CASES = {
    "flat": (pointwise((6, 400), 400 * i0 + i1), ALONG),
    "flat, ragged": (pointwise((4, 333), 333 * i0 + i1), ALONG),
    "one row is no fours": (pointwise((5, 331), 332 * i0 + i1), SINGLY),
    "with gaps": (pointwise((6, 40), 400 * i0 + i1 + 8), ALONG),
    "with odd gaps": (pointwise((6, 40), 401 * i0 + i1), SINGLY),
    "from an odd place": (pointwise((6, 40), 40 * i0 + i1 + 2), SINGLY),
    "every other": (pointwise((6, 40), 80 * i0 + 2 * i1), SINGLY),
    "across": (pointwise((8, 64, 64), 64 * 64 * i0 + 64 * i2 + i1), SINGLY),
    "rows in one tile": (noisy_rows(6, 96), ALONG),
    "rows that end within fours": (noisy_rows(6, 97), SINGLY),
    "columns": (noisy_columns(40, 64), DOWN),
}


@pytest.mark.spread(3)
@pytest.mark.parametrize("case", CASES)
def test_numbers_are_the_same_however_they_come(case, tmp_path):
    (spec, buffers), how = CASES[case]
    kernel = emit_kernel(spec, buffers)
    assert how in kernel.source, kernel.source
    check(kernel, spec, buffers, inputs_for(graph_of(spec, buffers)) | SEED, tmp_path)


@pytest.mark.spread(3)
@pytest.mark.parametrize("columns", [4096, 4100, 4102])
def test_rows_in_blocks(columns, tmp_path):
    spec, buffers = noisy_rows(3, columns)
    kernel = emit_kernel(spec, buffers, largest_tile=1)
    assert (ALONG if columns % 4 == 0 else SINGLY) in kernel.source
    check(kernel, spec, buffers, inputs_for(graph_of(spec, buffers)) | SEED, tmp_path)
