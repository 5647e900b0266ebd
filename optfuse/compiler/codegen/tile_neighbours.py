"""The neighbourhood of a tile configuration, which the search of ``optfuse.tuning`` explores.

A tile that holds all of r keeps doing so; a loop over r instead of it is a step of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations

from optfuse.compiler.codegen.block_sizes import given_tile
from optfuse.compiler.codegen.index_arithmetic import Axis
from optfuse.compiler.codegen.tiles import TileConfig, power_of_two

#: The fewest and the most elements of a tile for each thread; beyond them kernels are slow.
FEWEST_EACH, MOST_EACH = 1, 64
MOST_WARPS = 16
#: The block of r of the loop that is tried in the place of a tile that holds all of r.
LOOP_BLOCK = 2048


def neighbours(axes: tuple[Axis, ...], config: TileConfig, largest: int) -> tuple[TileConfig, ...]:
    """The configurations one step away: a block or the warps doubled or halved, or both, or one block against another.

    Args:
        axes: The axes from ``kernel_axes``.
        config: The configuration whose neighbours are wanted.
        largest: The most elements of a tile.
    """
    found: dict[TileConfig, None] = {}
    for tried in (*_resized(axes, config), *_walked_otherwise(axes, config)):
        if tried != config and _sensible(axes, tried, largest):
            found[tried] = None
    return tuple(found)


def _resized(axes: tuple[Axis, ...], config: TileConfig) -> Iterator[TileConfig]:
    walked = given_tile(axes, config).axes
    free = [axis.constant for axis in walked if axis.walk != "whole" and axis.size > 1]
    for name in free:
        for step in (1, -1):
            yield _moved(config, {name: step})
            yield _moved(config, {name: step}, warps=step)
    for one, other in combinations(free, 2):
        for step in (1, -1):
            yield _moved(config, {one: step, other: -step})
    for step in (1, -1):
        yield _moved(config, {}, warps=step)


def _walked_otherwise(axes: tuple[Axis, ...], config: TileConfig) -> Iterator[TileConfig]:
    """For reductions: a loop over r instead of a tile that holds all of it, or the reverse."""
    r = axes[-1]
    if r.walk != "looped" or config.loop == "none":
        return
    blocks = dict(config.blocks)
    if config.loop == "persistent" and r.size > LOOP_BLOCK:
        blocks |= {axis.constant: 1 for axis in axes[:-1]} | {r.constant: LOOP_BLOCK}
        yield replace(config, blocks=tuple(blocks.items()), num_warps=8, loop="looped")
    elif config.loop == "looped":
        blocks[r.constant] = power_of_two(r.size)
        for warps in (config.num_warps, 2 * config.num_warps, MOST_WARPS):
            yield replace(config, blocks=tuple(blocks.items()), num_warps=warps, loop="persistent")


def _moved(config: TileConfig, steps: Mapping[str, int], warps: int = 0) -> TileConfig:
    """The configuration with blocks and warps times two to the given powers."""
    blocks = tuple((name, _times(size, steps.get(name, 0))) for name, size in config.blocks)
    return replace(config, blocks=blocks, num_warps=_times(config.num_warps, warps))


def _times(size: int, step: int) -> int:
    return size << step if step >= 0 else size >> -step


def _sensible(axes: tuple[Axis, ...], config: TileConfig, largest: int) -> bool:
    blocks = dict(config.blocks)
    if not 1 <= config.num_warps <= MOST_WARPS:
        return False
    if any(not 1 <= blocks[axis.constant] <= power_of_two(axis.size) for axis in axes):
        return False
    elements = math.prod(blocks.values())
    each = elements / (32 * config.num_warps)
    return elements <= largest and (each >= FEWEST_EACH or config.num_warps == 1) and each <= MOST_EACH
