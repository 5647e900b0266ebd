"""Tiles that fit the hardware and the access pattern."""

from __future__ import annotations

import math

import pytest
import sympy

from optfuse.compiler.codegen.block_sizes import choose_tile
from optfuse.compiler.codegen.index_arithmetic import Axis
from optfuse.compiler.codegen.triton_kernel import emit_kernel
from optfuse.compiler.ir.size_decisions import Decisions
from optfuse.compiler.ir.sizes import Size
from tests.compiler.codegen.specs import (
    Kernel,
    call,
    channel_softmax,
    column_sum,
    i0,
    i1,
    padded_and_gathered,
    row_sum,
    rows_from_place_to_place,
    softmax,
    transposed_copy,
)


def blocks(pattern, *sizes):
    kernel = emit_kernel(*pattern(*sizes, "bfloat16"))
    return dict(kernel.config.blocks), kernel.config, kernel


def test_short_rows_share_a_program_and_long_ones_are_looped():
    assert blocks(softmax, 65_536, 64)[0] == {"XBLOCK": 32, "RBLOCK": 64}
    assert blocks(softmax, 8192, 8192)[0] == {"XBLOCK": 1, "RBLOCK": 8192}
    assert blocks(softmax, 8192, 8192)[1].loop == "persistent"
    assert blocks(softmax, 8192, 100_000)[1].loop == "looped"


def test_column_reductions_are_wide_along_x():
    tile, config, _ = blocks(column_sum, 8192, 768)
    assert config.loop == "looped"
    assert tile["XBLOCK"] >= 16


@pytest.mark.parametrize(
    ("pixels", "channels", "loop", "tile", "warps"),
    [
        (1 << 20, 8, "looped", {"XBLOCK": 256, "RBLOCK": 1}, 4),
        (1 << 20, 21, "looped", {"XBLOCK": 128, "RBLOCK": 1}, 4),
        (1 << 10, 8, "persistent", {"XBLOCK": 16, "RBLOCK": 8}, 4),
        (1 << 20, 64, "persistent", {"XBLOCK": 32, "RBLOCK": 64}, 4),
        (1 << 10, 64, "persistent", {"XBLOCK": 16, "RBLOCK": 64}, 4),
    ],
)
def test_channels_are_read_again_if_few_and_held_by_few_warps_if_more(pixels, channels, loop, tile, warps):
    found, config, _ = blocks(channel_softmax, pixels, channels)
    assert (config.loop, found, config.num_warps) == (loop, tile, warps)


def test_sums_of_short_rows_hold_them_and_of_few_strided_rows_take_one_at_a_time():
    assert blocks(row_sum, 1 << 21, 4)[0] == {"XBLOCK": 512, "RBLOCK": 4}
    assert blocks(column_sum, 4, 1 << 21)[0] == {"XBLOCK": 1024, "RBLOCK": 1}
    assert blocks(column_sum, 4, 1 << 18)[0] == {"XBLOCK": 256, "RBLOCK": 1}


def test_few_rows_are_not_bundled():
    assert blocks(softmax, 100, 64)[0]["XBLOCK"] == 1


@pytest.mark.parametrize("pattern", [softmax, column_sum, transposed_copy])
@pytest.mark.parametrize("sizes", [(1000, 333), (4096, 768), (7, 20_000), (20_000, 7)])
def test_an_axis_that_needs_no_mask_needs_none_in_the_interpreter(pattern, sizes):
    _, _, kernel = blocks(pattern, *sizes)
    interpreted = dict(kernel.interpret.blocks)
    points = {"XBLOCK": kernel.grid[-1][0], "YBLOCK": kernel.grid[0][0]}
    for name, block in kernel.config.blocks:
        if name in points and points[name] % block == 0:
            assert points[name] % interpreted[name] == 0
        assert interpreted[name] >= block or points[name] % block


@pytest.mark.parametrize("pattern", [rows_from_place_to_place, padded_and_gathered])
def test_rows_at_places_that_are_read_are_gathered_and_added_along_the_rows(pattern):
    """Not along the places, though those are neighbours in memory."""
    assert blocks(pattern, 1 << 20, 256)[0] == {"YBLOCK": 16, "XBLOCK": 256}


def test_many_live_values_make_a_smaller_tile():
    def sum_of(inputs: int) -> int:
        k = Kernel((1 << 22,))
        for n in range(inputs):
            k.input(f"a{n}", 1 << 22)
        terms = [k.load(f"a{n}", i0) for n in range(inputs)]
        low, high = terms[0], terms[0]
        for term in terms[1:]:
            low, high = call("minimum", low, term), call("maximum", high, term)
        for n, term in enumerate(terms):
            k.pointwise(f"o{n}", call("div", call("sub", term, low), high))
        return dict(emit_kernel(k.spec(*(f"o{n}" for n in range(inputs))), k.buffers).config.blocks)["XBLOCK"]

    assert sum_of(2) == 1024
    assert sum_of(40) < 1024


@pytest.mark.parametrize(("columns", "piece"), [(768, 256), (96, 32), (64, 64), (60_000, 256)])
def test_what_varies_along_rows_alone_is_computed_once_for_several_rows(columns, piece):
    k = Kernel((1 << 16, columns))
    k.input("a", 1 << 16, columns)
    k.input("scale", columns)
    k.pointwise("out", call("mul", k.load("a", i0, i1), call("rsqrt", k.load("scale", i1))))
    blocks = dict(emit_kernel(k.spec("out"), k.buffers).config.blocks)
    assert blocks["XBLOCK"] == piece
    assert blocks["YBLOCK"] > 1


@pytest.mark.parametrize("columns", [7, 24, 144 // 2 + 1])
def test_rows_that_would_leave_lanes_idle_stay_flat(columns):
    k = Kernel((4096, columns))
    k.input("a", 4096, columns)
    k.input("scale", columns)
    k.pointwise("out", call("mul", k.load("a", i0, i1), k.load("scale", i1)))
    assert list(dict(emit_kernel(k.spec("out"), k.buffers).config.blocks)) == ["XBLOCK"]


def test_blocks_of_a_changing_size_hold_it_at_no_number() -> None:
    decisions = Decisions({"s": 2}, {"s": (2, math.inf)})
    rows, columns = sympy.symbols("rows columns", integer=True)
    axis = Axis("x", ((rows, 64), (columns, 128 * Size.symbol("s", decisions))))
    (tiled,) = choose_tile((axis,), (), lambda _: 2.0, 1 << 16, 1).axes
    assert tiled.block == 128
    assert all(decisions.holds({"s": size}) for size in (2, 3, 50, 1001))
