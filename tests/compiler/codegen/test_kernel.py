"""Emitted kernels against the loop IR's interpreter, run by Triton's: patterns at awkward sizes and in every tiling."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import sympy

from optfuse.compiler.codegen.block_sizes import LARGEST_TILE
from optfuse.compiler.codegen.triton_kernel import emit_kernel
from optfuse.compiler.ir.nodes import Const, Guard, Iota, Load
from optfuse.compiler.ir.size_decisions import Decisions
from optfuse.compiler.ir.sizes import Size
from tests.compiler.codegen.running import check
from tests.compiler.codegen.specs import (
    F32,
    PATTERNS,
    Kernel,
    Result,
    batch_norm,
    call,
    column_sum,
    const,
    i0,
    i1,
    i2,
    layer_norm,
    r0,
    r1,
    softmax,
    transposed_copy,
)

LOOPED = 1


@pytest.mark.spread(5)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 1), (1, 129), (7, 1000), (129, 127), (16, 64)])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_at_awkward_sizes(pattern, rows, columns, dtype, tmp_path):
    spec, buffers = PATTERNS[pattern](rows, columns, dtype)
    check(emit_kernel(spec, buffers), spec, buffers, folder=tmp_path)


@pytest.mark.spread(4)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("pattern", ["softmax", "layer_norm", "column_sum"])
@pytest.mark.parametrize(("rows", "columns"), [(3, 5000), (640, 3), (4, 4096)])
def test_looped_reductions(pattern, rows, columns, dtype, tmp_path):
    spec, buffers = PATTERNS[pattern](rows, columns, dtype)
    kernel = emit_kernel(spec, buffers, LOOPED)
    assert kernel.config.loop == "looped"
    check(kernel, spec, buffers, folder=tmp_path)


@pytest.mark.parametrize("largest", [LARGEST_TILE, LOOPED])
@pytest.mark.parametrize(("images", "channels", "pixels"), [(3, 5, 49), (2, 1, 7), (8, 16, 64), (1, 3, 3000)])
def test_batch_norm_updates_its_statistics_in_place(images, channels, pixels, largest, tmp_path):
    spec, buffers = batch_norm(images, channels, pixels, "bfloat16")
    kernel = emit_kernel(spec, buffers, largest)
    assert set(kernel.written) == {"y", "mean", "running_mean"}
    check(kernel, spec, buffers, folder=tmp_path)


def test_passes_of_a_looped_softmax():
    """One pass for the maximum and the sum, one for the quotients."""
    spec, buffers = softmax(4, 65_536, "bfloat16")
    kernel = emit_kernel(spec, buffers)
    assert kernel.source.count("for r_start in") == 2
    assert kernel.source.count("tl.load(scores_ptr") == 2
    assert kernel.source.count("tl.store(") == 1


def test_a_load_is_written_once():
    spec, buffers = softmax(4, 1024, "bfloat16")
    source = emit_kernel(spec, buffers).source
    assert source.count("tl.load(") == 1
    assert "mask" not in source


def test_masks_appear_only_where_a_block_is_not_full():
    spec, buffers = softmax(7, 1000, "float32")
    kernel = emit_kernel(spec, buffers)
    assert dict(kernel.config.blocks) == {"XBLOCK": 1, "RBLOCK": 1024}
    assert "rmask" in kernel.source
    assert "xmask" not in kernel.source


def test_transposition_takes_a_square_tile():
    spec, buffers = transposed_copy(512, 768, "bfloat16")
    kernel = emit_kernel(spec, buffers)
    assert dict(kernel.config.blocks) == {"YBLOCK": 64, "XBLOCK": 64}
    assert kernel.programs(kernel.config) == 2 * 12 * 8
    assert kernel.grid_text == "triton.cdiv(1536, YBLOCK) * triton.cdiv(512, XBLOCK)"


def test_contiguous_access_needs_no_division():
    k = Kernel((6, 5, 7))
    k.input("a", 6, 5, 7)
    k.input("b", 5, 7)
    k.pointwise("c", call("add", k.load("a", i0, i1, i2), k.load("b", i1, i2)))
    source = emit_kernel(k.spec("c"), k.buffers).source
    assert "tl.load(a_ptr + xindex, mask=xmask)" in source
    assert re.findall(r"\w+ = xindex [/%].*", source) == ["x0 = xindex % 35"]


def test_values_that_do_not_vary_along_r_are_computed_before_the_loop():
    spec, buffers = layer_norm(4, 70_000, "bfloat16")
    source = emit_kernel(spec, buffers).source
    last_loop = source[source.rindex("for r_start") :]
    assert "rsqrt" not in last_loop
    assert "tl.load(weight_ptr" in last_loop


def test_full_reduction_to_a_scalar(tmp_path):
    k = Kernel((), (3, 50))
    k.input("a", 3, 50)
    k.reduce("sum", k.load("a", r0, r1))
    spec = k.spec("sum")
    for largest in (LARGEST_TILE, LOOPED):
        check(emit_kernel(spec, k.buffers, largest), spec, k.buffers, folder=tmp_path)


def test_outer_values_beside_a_parallel_r(tmp_path):
    """No reduction: r is one more parallel axis, and the outer value is stored once."""
    k = Kernel((70,), (3, 200))
    k.input("scale", 70)
    k.input("a", 70, 3, 200)
    k.pointwise("root", call("sqrt", call("abs", k.load("scale", i0))), full=False)
    k.pointwise("out", call("mul", k.load("a", i0, i1, i2), k.load("root", i0)))
    spec = k.spec("out", "root")
    kernel = emit_kernel(spec, k.buffers)
    assert kernel.config.loop == "none"
    assert len(kernel.grid) == 2
    check(kernel, spec, k.buffers, folder=tmp_path)


def test_outer_value_overwritten_in_place_beside_full_values(tmp_path):
    """The outer update reads what it overwrites, so no two programs may share an x."""
    k = Kernel((9,), (300,))
    k.input("state", 9)
    k.input("a", 9, 300)
    k.pointwise("state", call("mul", k.load("state", i0), const(0.5)), full=False)
    k.pointwise("out", call("add", k.load("a", i0, i1), k.load("state", i0)))
    spec = k.spec("out", "state")
    kernel = emit_kernel(spec, k.buffers)
    assert len(kernel.grid) == 1
    check(kernel, spec, k.buffers, folder=tmp_path)


@pytest.mark.parametrize("largest", [LARGEST_TILE, LOOPED])
def test_input_overwritten_after_its_last_read(largest, tmp_path):
    """x is read by both passes and overwritten by a value that needs neither: the store comes last."""
    k = Kernel((5,), (3000,))
    k.input("x", 5, 3000)
    k.input("new", 5, 3000)
    k.reduce("sum", k.load("x", i0, r0))
    k.pointwise("out", call("mul", k.load("x", i0, i1), k.load("sum", i0)))
    k.pointwise("x", call("neg", k.load("new", i0, i1)))
    spec = k.spec("out", "x", memory=["x"])
    kernel = emit_kernel(spec, k.buffers, largest)
    assert kernel.source.rindex("tl.load(x_ptr") < kernel.source.index("tl.store(x_ptr")
    check(kernel, spec, k.buffers, folder=tmp_path)


def test_strided_and_windowed_access(tmp_path):
    """Floors and remainders in an index, with a numerator below zero under a guard."""
    k = Kernel((4, 11))
    k.input("a", 4, 6)
    half = sympy.floor((i1 - 1) / 2)
    inside = (Guard(half, 0, 6), Guard(sympy.Mod(i1 - 1, 2), 0, 1))
    windowed = Load("a", 6 * i0 + half, F32, inside, Const(-1.0, F32))
    k.pointwise("out", call("add", windowed, Iota(sympy.Mod(i1 + 3 * i0, 5), F32)))
    spec = k.spec("out")
    check(emit_kernel(spec, k.buffers), spec, k.buffers, folder=tmp_path)


def test_guards_that_always_hold_are_left_out():
    k = Kernel((256,))
    k.input("a", 256)
    k.pointwise("out", Load("a", i0, F32, (Guard(i0, 0, 256),), Const(0.0, F32)))
    assert "mask" not in emit_kernel(k.spec("out"), k.buffers).source


def test_one_rounding_at_the_store():
    k = Kernel((64,))
    k.input("a", 64, dtype="bfloat16")
    k.buffer("b", 64, dtype="bfloat16")
    k.pointwise("b", call("mul", k.load("a", i0), const(1.01)))
    k.pointwise("c", call("sub", k.load("b", i0), k.load("a", i0)))
    spec = k.spec("c")
    assert ".to(tl.bfloat16)" not in emit_kernel(spec, k.buffers).source


def test_large_buffers_are_addressed_in_64_bits():
    k = Kernel((50_000, 60_000))
    k.input("a", 50_000, 60_000)
    k.input("b", 60_000)
    k.pointwise("c", call("add", k.load("a", i0, i1), k.load("b", i1)))
    source = emit_kernel(k.spec("c"), k.buffers).source
    assert "60000 * yindex.to(tl.int64)" in source or "60000 * (yindex).to(tl.int64)" in source, source
    k = Kernel((50_000 * 60_000,))
    k.input("a", 50_000 * 60_000)
    k.pointwise("c", call("neg", k.load("a", i0)))
    assert "tl.program_id(0)).to(tl.int64)" in emit_kernel(k.spec("c"), k.buffers).source
    k = Kernel((4, 7))
    k.input("a", 4, 7, stride=(1 << 30, 1))
    k.pointwise("c", call("neg", k.load("a", i0, i1)))
    source = emit_kernel(k.spec("c"), k.buffers).source
    assert "1073741824 * x1.to(tl.int64)" in source
    assert "tl.store(c_ptr + xindex" in source


@pytest.mark.parametrize(("rows", "wide"), [(2, False), (4, True)])
def test_guards_and_positions_are_computed_in_64_bits_where_they_need_them(rows, wide):
    position, points = 1_000_000_000 * i0 + i1, rows * 1_000_000_000
    k = Kernel((rows, 1_000))
    k.input("a", points)
    loaded = Load("a", i1, F32, (Guard(position, 0, points - 1_000_000_000 + 9),), Const(0.0, F32))
    k.pointwise("b", call("add", loaded, call("cast", Iota(position, "int64"), dtype=F32)))
    source = emit_kernel(k.spec("b"), k.buffers).source
    products = re.findall(r"1000000000 \* \w+(?:\.to\(tl\.int64\))?", source)
    assert len(products) == 2
    assert all(text.endswith("int64)") == wide for text in products), source


@pytest.mark.parametrize(("size", "wide"), [(1 << 6, False), (1 << 16, True)])
def test_products_of_changing_sizes_are_computed_in_64_bits_where_they_need_them(size, wide):
    s = Size.symbol("s", Decisions({"s": size}, {"s": (2, math.inf)}))
    k = Kernel((s, s))
    k.input("a", s)
    k.input("b", s)
    k.pointwise("c", call("add", k.load("a", i0), k.load("b", i1)))
    source = emit_kernel(replace(k.spec("c"), symbols=frozenset("s")), k.buffers).source
    assert ("s = tl.cast(s, tl.int64)" in source) is wide


def test_a_negative_zero_is_no_literal(tmp_path):
    k = Kernel((64,))
    k.input("a", 64)
    k.pointwise("b", call("div", k.load("a", i0), const(-0.0)))
    made = emit_kernel(k.spec("b"), k.buffers)
    assert "-0.0" not in made.source
    check(made, k.spec("b"), k.buffers, folder=tmp_path)


def test_names_never_collide(tmp_path):
    """Buffers named like the kernel's own variables and functions."""
    k = Kernel((40,))
    names = ["xindex", "x0", "xmask", "tl", "divide", "sum", "offset", "first"]
    for name in names:
        k.input(name, 40)
    value = k.load(names[0], i0)
    for name in names[1:]:
        value = call("add", value, k.load(name, i0))
    k.pointwise("maximum", value)
    k.pointwise("print", call("div", k.load("maximum", i0), k.load("sum", i0)))
    spec = k.spec("print", "maximum")
    check(emit_kernel(spec, k.buffers), spec, k.buffers, folder=tmp_path)


def test_a_value_in_the_place_of_another_is_stored_after_the_last_read():
    """b takes a's memory, and c, which comes after b, reads a."""
    k = Kernel((300,))
    k.input("a", 300)
    k.input("other", 300)
    k.pointwise("b", call("neg", k.load("other", i0)))
    k.pointwise("c", call("exp", k.load("a", i0)))
    spec = replace(k.spec("b", "c"), inplace=frozenset({"b"}))
    source = emit_kernel(spec, k.buffers).source
    assert source.index("tl.load(a_ptr") < source.index("tl.debug_barrier()") < source.index("tl.store(b_ptr")


@pytest.mark.parametrize("follows", [True, False])
def test_threads_wait_for_each_other_only_where_one_may_overwrite_what_another_reads(follows):
    """Down columns, with sums: "product" lies in the place of a tile that it follows from, or of another one."""
    spec, buffers = column_sum(4096, 768, "bfloat16")
    if not follows:
        k = Kernel((768,), (4096,))
        k.buffers |= buffers
        k.input("other", 4096, 768, dtype="bfloat16")
        k.members += spec.members
        k.reduce("max", k.load("other", r0, i0), ("largest", Result(0, F32)))
        spec, buffers = k.spec("product", "bias_grad", "largest"), k.buffers
    source = emit_kernel(replace(spec, inplace=frozenset({"product"})), buffers).source
    assert ("debug_barrier" in source) is not follows


def test_walks_down_columns_load_ahead():
    assert "tl.range(" in emit_kernel(*column_sum(1568, 65_536, "bfloat16")).source
    assert "tl.range(" not in emit_kernel(*softmax(64, 100_000, "bfloat16")).source
