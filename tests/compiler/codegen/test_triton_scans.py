"""Scans in emitted kernels: tiles that hold a row, loops with a carry, and the members around them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optfuse.compiler.codegen.deduplicate import likeness
from optfuse.compiler.codegen.kernel_source import KernelSource
from optfuse.compiler.codegen.tiles import TileConfig
from optfuse.compiler.codegen.triton_kernel import emit_kernel
from optfuse.compiler.ir.kernel_spec import KernelSpec
from optfuse.compiler.ir.nodes import Buffer, Call, Expr, Iota, Result, Scan
from optfuse.runtime.aot import compile_kernels
from tests.compiler.codegen.running import check, module_text
from tests.compiler.codegen.specs import F32, Kernel, call, const, i0, i1, r0

Made = tuple[KernelSpec, dict[str, Buffer]]


def results(*dtypes: str) -> list[Expr]:
    return [Result(k, dtype) for k, dtype in enumerate(dtypes)]


def nucleus(rows: int, columns: int, dtype: str) -> Made:
    """Softmax, its running sum, and which tokens are within a total probability of one half."""
    k = Kernel((rows,), (columns,), name="nucleus")
    k.input("scores", rows, columns, dtype=dtype)
    k.reduce("max", k.load("scores", i0, r0), ("largest", Result(0, F32)))
    k.pointwise("exp", call("exp", call("sub", k.load("scores", i0, i1), k.load("largest", i0))))
    k.reduce("sum", k.load("exp", i0, r0), ("total", Result(0, F32)))
    k.pointwise("probability", call("div", k.load("exp", i0, i1), k.load("total", i0)))
    add = call("add", *results(F32, F32))
    k.scan("running", Scan((k.load("probability", i0, r0),), (add,)), Result(0, F32))
    within = call("lt", k.load("running", i0, i1), const(0.5), dtype="bool")
    k.pointwise("kept", within)
    k.pointwise("left", call("sub", const(1.0), k.load("running", i0, i1)))
    return k.spec("kept", "left"), k.buffers


def positions(rows: int, columns: int, dtype: str) -> Made:
    """Running counts of a mask, minus one, down its columns or along its rows, and their maximum."""
    k = Kernel((rows,), (columns,), name="positions")
    k.input("mask", rows, columns, dtype=dtype)
    ones = call("cast", k.load("mask", i0, r0), dtype="int64")
    k.scan("count", Scan((ones,), (call("add", *results("int64", "int64")),)), Result(0, "int64"))
    k.pointwise("position", call("sub", k.load("count", i0, i1), const(1, "int64")))
    k.reduce("max", k.load("position", i0, r0), ("last", Result(0, "int64")))
    k.pointwise("left", call("sub", k.load("last", i0), k.load("position", i0, i1)))
    return k.spec("position", "left"), k.buffers


def recurrence(rows: int, columns: int, dtype: str) -> Made:
    """h = a * h + b along the columns: a scan of pairs, of which the first is not stored."""
    k = Kernel((rows,), (columns,), name="recurrence")
    for name in ("a", "b"):
        k.input(name, rows, columns, dtype=dtype)
    k.buffer("h", rows, columns, dtype=dtype)
    decay = call("sigmoid", k.load("a", i0, r0))
    a, b, c, d = results(F32, F32, F32, F32)
    scan = Scan((decay, k.load("b", i0, r0)), (call("mul", a, c), call("add", call("mul", c, b), d)))
    k.scan("h", scan, Result(1, F32))
    return k.spec("h"), k.buffers


def running_maximum(rows: int, columns: int, dtype: str) -> Made:
    """The largest value so far and where it was."""
    k = Kernel((rows,), (columns,), name="running_maximum")
    k.input("x", rows, columns, dtype=dtype)
    value, at, new, here = results(F32, "int32", F32, "int32")
    wins = call("bitwise_or", call("ge", new, value, dtype="bool"), call("isnan", new, dtype="bool"))
    combine = (call("where", wins, new, value), call("where", wins, here, at))
    k.scan("place", Scan((k.load("x", i0, r0), Iota(r0, "int32")), combine), Result(1, "int32"))
    return k.spec("place"), k.buffers


SCANS = {each.__name__: each for each in (nucleus, positions, recurrence, running_maximum)}


def emitted(made: Made, block: int, rows: int = 1) -> KernelSource:
    """A kernel with tiles of ``rows`` points of x and ``block`` of r."""
    loop = "looped" if block < made[0].space.r[0] else "persistent"
    return emit_kernel(*made, config=TileConfig((("XBLOCK", rows), ("RBLOCK", block)), 4, 1, loop))


def launched_small(kernel: KernelSource) -> KernelSource:
    """The kernel with its small tile in Triton's interpreter, too."""
    return replace(kernel, interpret=kernel.config)


@pytest.mark.spread(5)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 2), (7, 129), (3, 1000)])
@pytest.mark.parametrize("pattern", SCANS)
def test_a_tile_holds_the_row(pattern, rows, columns, dtype, tmp_path):
    made = SCANS[pattern](rows, columns, dtype)
    kernel = emit_kernel(*made)
    assert kernel.config.loop == "persistent"
    check(kernel, *made, folder=tmp_path)


@pytest.mark.spread(7)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("rows", "columns", "block", "several"), [(3, 1000, 64, 1), (5, 256, 64, 4), (2, 33, 32, 2)])
@pytest.mark.parametrize("pattern", SCANS)
def test_blocks_carry_on_from_those_before(pattern, rows, columns, block, several, dtype, tmp_path):
    made = SCANS[pattern](rows, columns, dtype)
    kernel = emitted(made, block, several)
    assert kernel.config.loop == "looped"
    check(launched_small(kernel), *made, folder=tmp_path)


def test_scans_down_columns_walk_row_by_row(tmp_path):
    k = Kernel((640,), (40,), name="down")
    k.input("x", 40, 640)
    k.buffer("sums", 640, 40, stride=(1, 640))
    k.scan("sums", Scan((k.load("x", r0, i0),), (call("add", *results(F32, F32)),)), Result(0, F32))
    spec = k.spec("sums")
    for kernel in (emit_kernel(spec, k.buffers), launched_small(emitted((spec, k.buffers), 1, 64))):
        check(kernel, spec, k.buffers, folder=tmp_path)


def test_kernels_that_differ_in_names_alone_are_one():
    one, other = nucleus(3, 100, F32), nucleus(3, 100, F32)
    renamed = replace(other[0], name="again")
    assert likeness(emit_kernel(*one)) == likeness(emit_kernel(renamed, other[1]))
    other_sum = recurrence(3, 100, F32)
    assert likeness(emit_kernel(*one)) != likeness(emit_kernel(*other_sum))


def test_shared_parts_of_a_combination_are_computed_once():
    k = Kernel((3,), (100,), name="logarithms")
    k.input("x", 3, 100)
    a, b = results(F32, F32)
    top = call("maximum", a, b)
    term: Call = call("exp", call("sub", call("minimum", a, b), top))
    combine = call("where", call("isinf", top, dtype="bool"), top, call("add", call("log1p", term), top))
    k.scan("logs", Scan((k.load("x", i0, r0),), (combine,)), Result(0, F32))
    assert emit_kernel(k.spec("logs"), k.buffers).source.count("maximum(") == 1


@pytest.mark.slow
def test_scans_compile(tmp_path):
    kernels = []
    for name, pattern in SCANS.items():
        for tag, block in (("whole", 1024), ("looped", 256)):
            made = pattern(64, 1000, "bfloat16")
            kernels.append(emitted((replace(made[0], name=f"{name}_{tag}"), made[1]), block))
    path = tmp_path / "kernels.py"
    path.write_text(module_text(kernels))
    reports = compile_kernels(path, cache=tmp_path / "cache")
    assert {report.name: report.error for report in reports if report.error} == {}
    assert len(reports) == len(kernels)
