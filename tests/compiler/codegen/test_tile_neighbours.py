"""Neighbouring tiles are legal: each computes what the chosen one does, and whole rows stay whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optfuse.compiler.codegen.tile_neighbours import MOST_WARPS, neighbours
from optfuse.compiler.codegen.tiles import TileConfig, power_of_two
from optfuse.compiler.codegen.triton_kernel import emit_kernel, kernel_axes
from optfuse.errors import PlanError
from tests.compiler.codegen.running import check
from tests.compiler.codegen.specs import PATTERNS, softmax

LARGEST = 16_384


@pytest.mark.spread(3)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_neighbour_computes_the_same(pattern, tmp_path):
    spec, buffers = PATTERNS[pattern](6, 100, "float32")
    start = emit_kernel(spec, buffers).config
    found = neighbours(kernel_axes(spec, buffers), start, LARGEST)
    assert found
    for config in found:
        kernel = emit_kernel(spec, buffers, config=config)
        assert kernel.config == config
        check(kernel, spec, buffers, folder=tmp_path)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("sizes", [(1000, 333), (8192, 768), (7, 20_000), (3, 5)])
def test_the_chosen_tile_is_its_own_configuration(pattern, sizes):
    spec, buffers = PATTERNS[pattern](*sizes, "bfloat16")
    chosen = emit_kernel(spec, buffers)
    assert emit_kernel(spec, buffers, config=chosen.config) == chosen


def test_rows_stay_whole_or_become_loops():
    spec, buffers = softmax(512, 5000, "bfloat16")
    axes, start = kernel_axes(spec, buffers), emit_kernel(spec, buffers).config
    assert start.loop == "persistent"
    found = neighbours(axes, start, LARGEST)
    assert {config.loop for config in found} == {"persistent", "looped"}
    for config in found:
        assert (dict(config.blocks)["RBLOCK"] == power_of_two(5000)) == (config.loop == "persistent")
    looped = next(config for config in found if config.loop == "looped")
    assert any(config.loop == "persistent" for config in neighbours(axes, looped, LARGEST))


def test_neighbours_stay_within_bounds():
    spec, buffers = softmax(64, 64, "bfloat16")
    axes = kernel_axes(spec, buffers)
    seen, near = set(), {emit_kernel(spec, buffers).config}
    while near:
        config = near.pop()
        seen.add(config)
        near |= set(neighbours(axes, config, 1024)) - seen
    assert max(config.num_warps for config in seen) <= MOST_WARPS
    for config in seen - {emit_kernel(spec, buffers).config}:
        blocks = dict(config.blocks)
        assert blocks["XBLOCK"] <= 64
        assert blocks["XBLOCK"] * blocks["RBLOCK"] <= 1024


@pytest.mark.parametrize("wrong", [{"XBLOCK": 3, "RBLOCK": 64}, {"XBLOCK": 8}, {"XBLOCK": 8, "RBLOCK": 32}])
def test_tiles_of_other_kernels_are_refused(wrong):
    spec, buffers = softmax(64, 64, "bfloat16")
    config = replace(emit_kernel(spec, buffers).config, blocks=tuple(wrong.items()))
    with pytest.raises(PlanError, match="tile"):
        emit_kernel(spec, buffers, config=config)


def test_configurations_are_plain_data():
    data = {"blocks": [["XBLOCK", 8]], "num_warps": 4, "num_stages": 1, "loop": "none"}
    assert TileConfig.from_json(data) == TileConfig((("XBLOCK", 8),), 4, 1, "none")
    with pytest.raises(ValueError, match="walk r"):
        TileConfig.from_json(data | {"loop": "round"})
