"""Choose the blocks of a tile for Triton's interpreter, whose time depends on operations and not on elements."""

from __future__ import annotations

import math
from dataclasses import replace

from optfuse.compiler.codegen.index_arithmetic import Axis
from optfuse.compiler.codegen.tiles import power_of_two
from optfuse.compiler.ir.sizes import Size, divides, hint

#: The most elements of a tile.
INTERPRETED_TILE = 1 << 17
#: The most elements of a tile that Triton takes.
LARGEST_TILE = 1 << 20
#: The most programs of the interpreter where blocks are kept small so that a program has one index.
INTERPRETED_PROGRAMS = 4096


def interpreted_blocks(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """The axes with blocks for Triton's interpreter: as large as possible, since its time depends on the operations.

    An axis without a mask must not need one here either. Indices that all lanes of a program share stay shared, unless
    that takes too many programs.
    """
    room = INTERPRETED_TILE
    found: list[Axis] = []
    for k, axis in reversed(list(enumerate(axes))):
        # an axis of a changing size fills its room, whatever the others keep
        most = INTERPRETED_TILE if isinstance(axis.size, Size) else LARGEST_TILE
        largest = min(_largest(axis), max(1, most // math.prod(other.block for other in axes[:k])))
        block = axis.block if axis.walk == "whole" else max(axis.block, min(largest, _below(room)))
        shared = _shared(axis)
        programs = -(-axis.size // shared)
        if block > shared and not isinstance(programs, Size) and programs <= INTERPRETED_PROGRAMS:
            block = shared
        room = max(1, room // block)
        found.append(replace(axis, interpret_block=block))
    return tuple(reversed(found))


def _largest(axis: Axis) -> int:
    """The largest block of an axis for the interpreter, the same at every size."""
    if isinstance(axis.size, Size):
        return INTERPRETED_TILE if axis.masked and axis.walk == "parallel" else axis.block
    return power_of_two(axis.size) if axis.masked else axis.size & -axis.size


def _shared(axis: Axis) -> int:
    """The largest block for which a program's lanes share all indices that they share with the axis' own block."""
    below, found = 1, 1 << 62
    for _, size in reversed(axis.digits[1:]):
        below *= size
        if axis.walk == "parallel" and axis.block > 1 and divides(axis.block, below):
            least = hint(below)  # only the interpreter's speed depends on it
            found = min(found, least & -least)
    return found


def _below(size: int) -> int:
    return 1 << (max(1, size).bit_length() - 1)
