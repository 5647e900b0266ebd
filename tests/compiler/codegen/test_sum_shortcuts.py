"""Sums that need no walk of their own: which are found, and that they are right."""

from __future__ import annotations

import pytest
import torch

from optfuse.compiler.codegen.reduction_passes import order_passes
from optfuse.compiler.codegen.sum_shortcuts import find_shortcuts
from optfuse.compiler.codegen.triton_kernel import emit_kernel
from optfuse.compiler.ir.nodes import Const, Iota
from optfuse.runtime.loader import load_source
from tests.compiler.codegen.running import check, graph_of, inputs_for, module_text, run
from tests.compiler.codegen.specs import F32, Kernel, Result, call, const, i0, i1, r0, softmax

LOOPED = 1


def cross_entropy_gradient(rows: int, columns: int, *, count=i1, other: float = 0.0):
    """The gradient of minus the log-probability of ``target``, scaled by ``scale``."""
    k = Kernel((rows,), (columns,), name="gradient")
    k.input("scores", rows, columns)
    k.input("scale", rows)
    k.input("target", rows, dtype="int64")
    hit = call("eq", Iota(count, "int64"), k.load("target", i0), dtype="bool")
    k.pointwise("hit", hit)
    k.pointwise("taken", call("where", k.load("hit", i0, i1), k.load("scale", i0), const(other)))
    k.reduce("sum", k.load("taken", i0, r0), ("total", Result(0, F32)))
    share = call("mul", call("exp", k.load("scores", i0, i1)), k.load("total", i0))
    k.pointwise("out", call("sub", k.load("taken", i0, i1), share))
    return k.spec("out", "total"), k.buffers


def test_softmax_reads_its_rows_twice():
    spec, buffers = softmax(4, 8, "float32")
    assert find_shortcuts(spec).online == {3: 0}
    passes = order_passes(spec, find_shortcuts(spec))
    assert passes.needed == ((0, 3), (1, 2, 4))
    assert "for r_start" not in emit_kernel(spec, buffers).source
    assert emit_kernel(spec, buffers, LOOPED).source.count("for r_start") == 2


def test_the_maximum_of_something_else_is_none():
    k = Kernel((4,), (8,))
    k.input("x", 4, 8)
    k.input("y", 4, 8)
    k.reduce("max", k.load("y", i0, r0), ("amax", Result(0, F32)))
    k.reduce("sum", call("exp", call("sub", k.load("x", i0, r0), k.load("amax", i0))), ("total", Result(0, F32)))
    assert not find_shortcuts(k.spec("total")).online


@pytest.mark.spread(4)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("columns", [1000, 4096])
def test_softmax_with_infinities(tmp_path, dtype, columns):
    rows = 6
    if dtype == "float64":
        k = Kernel((rows,), (columns,))
        k.input("scores", rows, columns, dtype=dtype)
        k.reduce("max", k.load("scores", i0, r0), ("amax", Result(0, dtype)))
        difference = call("sub", k.load("scores", i0, r0), k.load("amax", i0))
        k.reduce("sum", call("exp", difference), ("total", Result(0, dtype)))
        spec, buffers = k.spec("total"), k.buffers
    else:
        spec, buffers = softmax(rows, columns, dtype)
    scores = inputs_for(graph_of(spec, buffers))["scores"] * 30
    scores[0] = scores[0].sort().values  # a new maximum at every step
    scores[1, ::3] = float("-inf")
    scores[2, : columns // 2] = float("-inf")
    scores[3] = 7.0
    kernel = emit_kernel(spec, buffers, LOOPED)
    assert "add_exponential" in kernel.source
    check(kernel, spec, buffers, {"scores": scores}, tmp_path)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_rows_without_a_softmax(tmp_path, bad):
    spec, buffers = softmax(3, 300, "float32")
    kernel = emit_kernel(spec, buffers, LOOPED)
    scores = torch.randn(3, 300)
    scores[0] = bad
    scores[1, 5] = bad
    out = run(load_source(module_text([kernel]), tmp_path), kernel, buffers, {"scores": scores}, kernel.interpret)
    assert torch.allclose(out["probabilities"], scores.softmax(-1), equal_nan=True)


def test_a_sum_with_one_term_is_no_walk(tmp_path):
    spec, buffers = cross_entropy_gradient(6, 300)
    kernel = emit_kernel(spec, buffers, LOOPED)
    assert kernel.source.count("for r_start") == 1
    inputs = inputs_for(graph_of(spec, buffers)) | {"target": torch.tensor([0, 299, 5, -100, 300, 17])}
    check(kernel, spec, buffers, inputs, tmp_path)


@pytest.mark.parametrize("change", [{"count": 2 * i1}, {"other": 1.0}, {"count": i0 + i1}])
def test_what_is_no_such_sum_is_walked(tmp_path, change):
    spec, buffers = cross_entropy_gradient(6, 300, **change)
    assert not find_shortcuts(spec).single
    kernel = emit_kernel(spec, buffers, LOOPED)
    assert kernel.source.count("for r_start") == 2
    inputs = inputs_for(graph_of(spec, buffers)) | {"target": torch.tensor([0, 298, 6, -100, 300, 17])}
    check(kernel, spec, buffers, inputs, tmp_path)


def test_a_term_that_varies_is_walked():
    k = Kernel((4,), (8,))
    k.input("x", 4, 8)
    k.input("target", 4, dtype="int64")
    hit = call("eq", Iota(r0, "int64"), k.load("target", i0), dtype="bool")
    k.reduce("sum", call("where", hit, k.load("x", i0, r0), Const(0.0, F32)), ("total", Result(0, F32)))
    assert not find_shortcuts(k.spec("total")).single
