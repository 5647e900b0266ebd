"""Choose a tile's block size along each axis and its number of warps.

The numbers are for an H200 (132 multiprocessors, 64 Ki registers each) and come from measured searches over the kernels
of the benchmark (``docs/howto/tune.md``). Only speed depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from optfuse.compiler.codegen.index_arithmetic import Axis
from optfuse.compiler.codegen.interpreter_blocks import interpreted_blocks
from optfuse.compiler.codegen.product_tiles import DotTile
from optfuse.compiler.codegen.tiles import (
    NARROWEST_ROW,
    Access,
    TileConfig,
    large_accesses,
    power_of_two,
    row_block,
)
from optfuse.compiler.codegen.triton_dots import dot_axes
from optfuse.compiler.ir.sizes import Size, hint
from optfuse.errors import PlanError

#: The most elements of a tile that holds whole rows.
LARGEST_TILE = 16_384
#: A program's points of a flat axis, for elements of 16 bits and for wider ones.
FLAT_HALF, FLAT = 2048, 1024
#: Elements of a row for each warp, if registers allow.
WARP_ROW = 1024
#: The most columns of a column reduction's tile, and the registers of a thread that hold values of it.
WIDEST_COLUMNS = 64
COLUMN_REGISTERS = 64
#: The most rows that a thread reduces by itself, where the columns suffice to keep the device busy.
FEW_ROWS = 32
#: The most rows along strided memory that 4 warps hold.
WIDE_ROWS = 512
#: The most rows of a short column, and the fewest of them that a program loads at once.
SHORT_COLUMN, FEWEST_ROWS = 256, 16
#: Warps on the device, and bytes of loads in flight, that keep its memory busy.
BUSY_WARPS = 4096
BYTES_IN_FLIGHT = 4 << 20
#: Fewer warps than this leave the device idle at times.
IDLE_WARPS = 1024

PROGRAMS = 264  # two for each multiprocessor
#: Registers of a thread for values, by number of warps: without those for addresses and temporaries.
_REGISTERS = {1: 120, 2: 120, 4: 120, 8: 120, 16: 72, 32: 30}


@dataclass(frozen=True, slots=True)
class Tiled:
    """Axes with block sizes, and the number of warps."""

    axes: tuple[Axis, ...]
    num_warps: int


def choose_tile(
    axes: tuple[Axis, ...],
    accesses: Sequence[Access],
    held: Callable[[tuple[Axis, ...]], float],
    largest: int,
    passes: int,
) -> Tiled:
    """The axes with block sizes, and the number of warps.

    ``held`` gives the 32-bit values held for each element of the tile, for axes with a given walk of r; ``largest``
    is the most elements of a tile that holds all of r; ``passes`` is how often a loop would go over r.
    """
    given, axes = axes, tuple(_at_hints(axis) for axis in axes)
    own = {axis.name: axis.digits for axis in given}
    accesses = tuple(access.at_hints() for access in accesses)

    def pressure(tried: tuple[Axis, ...]) -> float:
        return held(tuple(replace(axis, digits=own[axis.name]) for axis in tried))

    if len(axes) == 1:
        tiled = _flat(axes, accesses, pressure(axes))
    elif axes[1].walk == "parallel":
        tiled = _plane(axes, accesses, pressure(axes))
    else:
        whole = (axes[0], replace(axes[1], walk="whole"))
        # a reduction along strided memory is cheapest in a loop over rows, unless that reads many several times
        by_rows = _coalesced(whole, accesses) > 1 and (passes == 1 or _is_read_again(whole, accesses))
        # a tile that holds a row of a changing size does so up to its own: a loop of one pass serves every size
        any_size = passes == 1 and isinstance(given[1].size, Size)
        tiled = None if by_rows or any_size else _whole(whole, accesses, pressure(whole), largest)
        if tiled is None:
            looped = (axes[0], replace(axes[1], walk="looped"))
            tiled = _looped(looped, accesses, pressure(looped), passes)
    found = tuple(replace(axis, digits=own[axis.name]) for axis in tiled.axes)
    for axis in found:
        if axis.walk == "whole" and axis.size > axis.block:
            raise PlanError(f"{axis.constant} of {axis.block} does not hold a row at every size")
    return Tiled(interpreted_blocks(found), tiled.num_warps)


def product_tile(axes: tuple[Axis, ...], tile: DotTile) -> Tiled:
    """The axes (y, x) of a product of matrices with the blocks of its tile."""
    return Tiled(interpreted_blocks(dot_axes(axes, tile)), tile.warps)


def _at_hints(axis: Axis) -> Axis:
    """The axis at the hints of its sizes, of which blocks are chosen: only speed depends on them."""
    return replace(axis, digits=tuple((symbol, hint(size)) for symbol, size in axis.digits))


def given_tile(axes: tuple[Axis, ...], config: TileConfig) -> Tiled:
    """The axes of ``plan_axes`` with the blocks and warps of a configuration.

    Raises:
        PlanError: If it does not fit the kernel: another axis, a block that is no power of two, a "persistent" one
            too small.
    """
    blocks = dict(config.blocks)
    if list(blocks) != [axis.constant for axis in axes] or any(size != power_of_two(size) for size in blocks.values()):
        wanted = ", ".join(axis.constant for axis in axes)
        raise PlanError(f"a tile of {blocks} is none for a kernel over {wanted}: give each a power of two")
    found: list[Axis] = []
    for axis in axes:
        block, walk = blocks[axis.constant], axis.walk
        if walk == "looped" and config.loop != "looped" and block >= axis.size:
            walk = "whole"
        if walk == "looped" and config.loop == "persistent":
            raise PlanError(
                f"a persistent tile of {axis.constant} {block} does not hold the {axis.size} points of a row"
            )
        if axis.walk == "whole" and block < axis.size:
            raise PlanError(f"{axis.constant} of {block} does not hold the {axis.size} points of a row")
        found.append(replace(axis, block=block, walk=walk))
    return Tiled(interpreted_blocks(tuple(found)), config.num_warps)


def fits(elements: int, warps: int, pressure: float) -> bool:
    """Whether the registers of a tile's threads suffice for its elements."""
    return elements / (32 * warps) * pressure <= _REGISTERS[warps]


def _flat(axes: tuple[Axis, ...], accesses: Sequence[Access], pressure: float) -> Tiled:
    (axis,) = axes
    half = all(access.bits <= 16 for access in _large(axes, accesses))
    block = FLAT_HALF if half and fits(FLAT_HALF, 4, pressure) and axis.size >= 4 * PROGRAMS * FLAT_HALF else FLAT
    while block > 128 and (-(-axis.size // block) < PROGRAMS or not fits(block, 4, pressure)):
        block //= 2
    block = min(block, power_of_two(axis.size))
    return Tiled((replace(axis, block=block),), max(1, min(4, block // 32)))


def _plane(axes: tuple[Axis, ...], accesses: Sequence[Access], pressure: float) -> Tiled:
    """Blocks of two parallel axes: square if both have contiguous accesses, else long along the one that has."""
    first, second = axes
    large = _large(axes, accesses)
    bits = max((access.bits for access in large), default=32)
    along = [any(access.contiguous(axis.digits) for access in large) for axis in axes]
    side = 64 if bits <= 16 else 32
    total = side * side if all(along) else 1024
    while total > 256 and not fits(total, 4, pressure):
        total //= 2
    if all(along):
        inner = min(side, power_of_two(second.size))
        outer = min(total // inner, power_of_two(first.size))
        inner = min(total // outer, power_of_two(second.size))
    elif along[1]:
        return _rows(axes, pressure)
    else:
        lead, other = (second, first) if not along[0] else (first, second)
        longer = min(total, power_of_two(lead.size))
        shorter = min(total // longer, power_of_two(other.size))
        outer, inner = (shorter, longer) if lead is second else (longer, shorter)
    warps = max(1, min(8, outer * inner // 256))
    return Tiled((replace(first, block=outer), replace(second, block=inner)), warps)


def _rows(axes: tuple[Axis, ...], pressure: float) -> Tiled:
    """Blocks of pieces of several rows, so that a thread computes values that do not vary with the row once."""
    first, second = axes
    inner = row_block(second.size)
    outer = min(4096 // inner, power_of_two(first.size))
    while outer > 1 and (
        -(-first.size // outer) * -(-second.size // inner) < PROGRAMS or not fits(outer * inner, 4, pressure)
    ):
        outer //= 2
    return Tiled((replace(first, block=outer), replace(second, block=inner)), max(1, min(4, outer * inner // 256)))


def _large(axes: Iterable[Axis], accesses: Sequence[Access]) -> list[Access]:
    return large_accesses(tuple(digit for axis in axes for digit in axis.digits), accesses)


def _coalesced(axes: tuple[Axis, ...], accesses: Sequence[Access]) -> int:
    """The least block of x for which large accesses along x are whole sectors of 32 bytes; 1 if more are along r."""
    large = _large(axes, accesses)
    digits = tuple(digit for axis in axes for digit in axis.digits)
    along, along_r = ([access for access in large if access.contiguous(axis.digits)] for axis in axes)
    if not along or sum(access.size(digits) for access in along) < sum(access.size(digits) for access in along_r):
        return 1
    return min(power_of_two(axes[0].size), 256 // min(access.bits for access in along))


def _is_read_again(axes: tuple[Axis, ...], accesses: Sequence[Access]) -> bool:
    """Whether strided rows are so few that a loop reads them from a cache in its later passes, a row at a time."""
    bits = max((access.bits for access in _large(axes, accesses) if not access.store), default=32)
    return axes[1].size <= (FEW_ROWS if bits <= 16 else FEW_ROWS // 2) and _few_rows(axes, 1.0, passes=2) is not None


def _whole(axes: tuple[Axis, ...], accesses: Sequence[Access], pressure: float, largest: int) -> Tiled | None:
    """A tile that holds all of r; None when no number of warps can hold it.

    A long row gets the fewest warps that can hold it: they exchange the least, and small programs are scheduled
    densely. It gets no more warps than leave 16 bytes for each lane.
    """
    x, r = axes
    inner = power_of_two(r.size)
    bits = min((max(16, access.bits) for access in _large(axes, accesses)), default=32)
    most = min(16, inner * bits // (32 * 128))
    if _coalesced(axes, accesses) > 1 or not most:
        return _whole_rows(axes, accesses, pressure, largest)
    if inner > largest:
        return None
    block, warps = max(1, WARP_ROW // inner), max(1, min(most, inner // WARP_ROW))
    block = min(block, power_of_two(x.size))
    while block > 1 and -(-x.size // block) < PROGRAMS:
        block //= 2
    while warps < most and -(-x.size // block) * warps < IDLE_WARPS:
        warps *= 2
    while not fits(block * inner, warps, pressure):
        if warps < most:
            warps *= 2
        elif block > 1:
            block //= 2
        elif warps < 16:
            warps *= 2
        else:
            return None
    return Tiled((replace(x, block=block), replace(r, block=inner)), warps)


def _whole_rows(axes: tuple[Axis, ...], accesses: Sequence[Access], pressure: float, largest: int) -> Tiled | None:
    """A tile of several short rows, or of rows along strided memory."""
    x, r = axes
    inner = power_of_two(r.size)
    least = _coalesced(axes, accesses)
    if least > 1 and inner <= WIDE_ROWS:
        return _whole_columns(axes, least, pressure, largest)
    block = max(least, min(power_of_two(x.size), 2048 // inner))
    while block > least and -(-x.size // block) < PROGRAMS:
        block //= 2
    while True:
        for warps in (1, 2, 4, 8, 16):
            # a reduction along strided memory exchanges partial sums between threads: fewer elements each
            comfortable = block * inner <= (512 if least == 1 else 256) * warps or warps == 16
            if comfortable and block * inner <= largest and fits(block * inner, warps, pressure):
                return Tiled((replace(x, block=block), replace(r, block=inner)), warps)
        if block == least:
            return None
        block //= 2


def _whole_columns(axes: tuple[Axis, ...], least: int, pressure: float, largest: int) -> Tiled | None:
    """A tile of whole columns, ``least`` or more of them, in as few warps as can hold it.

    The fewer warps share a column, the fewer partial results they exchange: softmax and norms over 48 to 256 channels
    of images take 4 warps with 32 columns half as long as 8 warps with 16 on an H100, and in 32 bits 0.8 to 0.9.
    """
    x, r = axes
    inner = power_of_two(r.size)
    widest = max(least, min(power_of_two(x.size), WIDEST_COLUMNS // 2))
    while widest > least and -(-x.size // widest) < PROGRAMS:
        widest //= 2
    for warps in (4, 8, 16):
        block = widest
        while block >= least:
            if block * inner <= largest and fits(block * inner, warps, pressure):
                return Tiled((replace(x, block=block), replace(r, block=inner)), warps)
            block //= 2
    return None


def _looped(axes: tuple[Axis, ...], accesses: Sequence[Access], pressure: float, passes: int) -> Tiled:
    """A tile for a loop over r: long along r, or wide along x where x is contiguous in memory."""
    x, r = axes
    if _coalesced(axes, accesses) > 1:
        return _few_rows(axes, pressure, passes) or _columns(axes, accesses, pressure)
    total = 2048
    while total > 256 and not fits(total, 8, pressure):
        total //= 2
    inner = max(1, min(power_of_two(r.size), total))
    return Tiled((replace(x, block=1), replace(r, block=inner)), max(1, min(8, inner // 128)))


def _few_rows(axes: tuple[Axis, ...], pressure: float, passes: int) -> Tiled | None:
    """A tile of one row at a time, in vectors along x; None if programs would be too few, or too long.

    Of 4 rows of 2 M numbers of 16 bits an H100 takes 13 us so, and 43 in a narrow tile that holds all rows. Rows that
    are read in several passes must stay in the cache nearby: softmax of 21 classes took 76 us, and 324 in a tile.
    """
    x, r = axes
    block, warps = (1024 if passes == 1 else 128 if r.size > FEW_ROWS // 2 else 256), 4
    while block > 256 and (block // 128 * pressure > COLUMN_REGISTERS or x.size // block * warps < BUSY_WARPS):
        block //= 2
    if r.size > FEW_ROWS or x.digits[-1][1] % 8 or x.size // block * warps < IDLE_WARPS:
        return None
    return Tiled((replace(x, block=block), replace(r, block=1)), warps)


def _columns(axes: tuple[Axis, ...], accesses: Sequence[Access], pressure: float) -> Tiled:
    """A tile of a column reduction, with enough threads and values each for loads to keep the memory busy."""
    x, r = axes
    if r.size <= SHORT_COLUMN:
        return _short_columns(axes, accesses, pressure)
    row = x.digits[-1][1]
    block = min(WIDEST_COLUMNS, row if row % WIDEST_COLUMNS == 0 else row_block(row), power_of_two(x.size))
    while block > NARROWEST_ROW and -(-x.size // block) < PROGRAMS:
        block //= 2
    while block > NARROWEST_ROW // 2 and -(-x.size // block) < PROGRAMS // 2:
        block //= 2
    programs = -(-x.size // block)
    warps = max(2, block // 16)
    while warps < 16 and programs * warps < IDLE_WARPS:
        warps *= 2
    threads = 32 * min(programs * warps, 2 * BUSY_WARPS)
    each = _held_each(axes, accesses, threads, pressure)
    if row % 2:  # rows that start unaligned are loaded element by element
        each = min(each, 8)
    inner = min(max(1, each * 32 * warps // block), power_of_two(r.size))
    while warps > 1 and block * inner < 64 * warps:
        warps //= 2
    return Tiled((replace(x, block=block), replace(r, block=inner)), warps)


def _short_columns(axes: tuple[Axis, ...], accesses: Sequence[Access], pressure: float) -> Tiled:
    """A narrow tile of few warps: the fewer threads share a column, the fewer partial sums are combined at the end."""
    x, r = axes
    block = min(WIDEST_COLUMNS // 2, row_block(x.digits[-1][1]), power_of_two(x.size))
    while block > NARROWEST_ROW // 2 and -(-x.size // block) < PROGRAMS:
        block //= 2
    programs = -(-x.size // block)
    warps = 2
    while warps < 8 and programs * warps < IDLE_WARPS:
        warps *= 2
    threads = 32 * min(programs * warps, 2 * BUSY_WARPS)
    each = _held_each(axes, accesses, threads, pressure)
    inner = min(max(FEWEST_ROWS, each * 32 * warps // block), power_of_two(r.size))
    while warps > 1 and block * inner < 64 * warps:
        warps //= 2
    return Tiled((replace(x, block=block), replace(r, block=inner)), warps)


def _held_each(axes: tuple[Axis, ...], accesses: Sequence[Access], threads: int, pressure: float) -> int:
    """Values that each thread loads at once so that memory is busy and registers suffice."""
    loaded = sum(access.bits for access in _large(axes, accesses) if not access.store) // 8
    each = 4
    while each < 16 and each * threads * loaded < BYTES_IN_FLIGHT:
        each *= 2
    while each > 2 and each * pressure > COLUMN_REGISTERS:
        each //= 2
    return each
