"""Other tiles for a kernel: the neighbours of a configuration, each legal for the kernel's kind.

A search goes from one to the next (``optfuse.tuning``). A row that lies in one block stays whole there; whether r is
walked in a loop instead is a step of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations

from optfuse.compiler.codegen.block_sizes import given_tile, power_of_two
from optfuse.compiler.codegen.index_arithmetic import Axis
from optfuse.compiler.codegen.tiles import TileConfig

#: Elements of a tile that one thread may hold: what is slow at either end is not worth compiling.
FEWEST_EACH, MOST_EACH = 1, 64
MOST_WARPS = 16
#: The block of r with which a loop is tried where rows lay in one block.
LOOP_BLOCK = 2048


def neighbours(axes: tuple[Axis, ...], config: TileConfig, largest: int) -> tuple[TileConfig, ...]:
    """Configurations one step away: a block or the warps twice or half as large, or both, or one block for another.

    Parameters
    ----------
    axes
        Those of ``kernel_axes``.
    config
        Where to look from.
    largest
        Elements that a tile may have.
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
    """Reductions: a loop over r instead of a tile that holds all of it, or the other way round."""
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
    """Blocks and warps times two to so many."""
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
