"""Tiles: which digits form a kernel's axes, how large its blocks are, and how many warps work on one.

The numbers are for an H200 (132 multiprocessors, 64 Ki registers each); nothing depends on them but speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import sympy

from optfuse.codegen.expressions import BITS
from optfuse.codegen.indexing import Atom, Axis, Linear, Walk, linearize
from optfuse.codegen.passes import Passes, operands, stored
from optfuse.ir.kernel import KernelSpec, Member, rdigit, xdigit
from optfuse.ir.nodes import Buffer, ivar, rvar, tvar
from optfuse.ir.verify_nest import loads_under

Digits = tuple[tuple[sympy.Symbol, int], ...]
Loop = Literal["none", "persistent", "looped"]

#: A row of a plane has at least this many points, and fills at least this share of its lanes.
NARROWEST_ROW = 32
ROW_USE = 0.8
#: A row of a plane that amortises what varies along rows alone is cut into pieces of this many points.
WIDEST_ROW = 256
#: A program that sums columns takes at most this many, and its threads hold values for about as many registers.
WIDEST_COLUMNS = 64
COLUMN_REGISTERS = 64
#: Warps on the whole device, and bytes that they have asked for and not received, that keep its memory busy.
BUSY_WARPS = 4096
BYTES_IN_FLIGHT = 4 << 20

PROGRAMS = 264  # two for each multiprocessor
INTERPRETED_TILE = 1 << 17
#: At most so many programs of the interpreter, if blocks are small so that programs share an index.
INTERPRETED_PROGRAMS = 4096
#: Registers that a thread can have, by number of warps, less what addresses and temporaries take.
_REGISTERS = {1: 120, 2: 120, 4: 120, 8: 120, 16: 72, 32: 30}


@dataclass(frozen=True, slots=True)
class TileConfig:
    """Block sizes (kernel parameter, elements), warps and pipeline stages. ``loop`` says how r is walked."""

    blocks: tuple[tuple[str, int], ...]
    num_warps: int
    num_stages: int
    loop: Loop


@dataclass(frozen=True, slots=True)
class Access:
    """A load or store of memory: its coefficients over the kernel's digits, and the element's bits."""

    coefficients: Mapping[sympy.Symbol, int]
    bits: int
    store: bool

    def contiguous(self, digits: Digits) -> bool:
        """Whether neighbours along an axis of these digits are neighbours in memory."""
        return bool(digits) and self.coefficients.get(digits[-1][0]) == 1

    def size(self, digits: Digits) -> int:
        """Bits touched, counted along the digits that move the address."""
        return self.bits * math.prod(size for symbol, size in digits if self.coefficients.get(symbol))


def memory_accesses(spec: KernelSpec, buffers: Mapping[str, Buffer], passes: Passes) -> tuple[Access, ...]:
    """What the kernel touches. Of gathers and windows the part that is affine counts."""
    known = {xdigit(k): Linear({xdigit(k): 1} if n > 1 else {}) for k, n in enumerate(spec.space.x)}
    known |= {rdigit(k): Linear({rdigit(k): 1} if n > 1 else {}) for k, n in enumerate(spec.space.r)}
    found = []
    for k, member in enumerate(spec.members):
        env = _variables(member, known)
        for load in loads_under(operands(member.nest) + stored(member.nest)):
            if load.buffer not in passes.producers[k]:
                full = env | {tvar(j): Linear() for j in range(len(load.indirect))}
                terms = linearize(load.index, full, _dropped).terms
                found.append(Access(_digits_of(terms), BITS[load.dtype], store=False))
        for store in member.nest.stores:
            if store.buffer in spec.stores:
                terms = linearize(store.index, env, _dropped).terms
                found.append(Access(_digits_of(terms), BITS[buffers[store.buffer].dtype], store=True))
    return tuple(found)


def _variables(member: Member, known: Mapping[sympy.Symbol, Linear]) -> dict[sympy.Symbol, Linear]:
    env = {ivar(j): linearize(expr, known, _dropped) for j, expr in enumerate(member.ivars)}
    return env | {rvar(j): linearize(expr, known, _dropped) for j, expr in enumerate(member.rvars)}


def _dropped(kind: str, numerator: Linear, divisor: int) -> Linear:
    return Linear()


def _digits_of(terms: Mapping[Atom, int]) -> dict[sympy.Symbol, int]:
    return {symbol: abs(c) for symbol, c in terms.items() if isinstance(symbol, sympy.Symbol)}


def plan_axes(spec: KernelSpec, passes: Passes, accesses: Sequence[Access]) -> tuple[Axis, ...]:
    """The axes of a kernel's tile, without block sizes: (x,), (y, x) or (x, r)."""
    x: Digits = tuple((xdigit(k), size) for k, size in enumerate(spec.space.x) if size > 1)
    r: Digits = tuple((rdigit(k), size) for k, size in enumerate(spec.space.r) if size > 1)
    if r and all(role == "outer" for role in passes.roles):
        r = ()
    if r and any(role != "full" for role in passes.roles):
        return Axis("x", x), Axis("r", r, _walk(spec, passes))
    digits = _in_memory_order((*x, *r), accesses, keep=not r)
    turned = _transposed(digits, accesses) or _broadcast(digits, accesses)
    if turned:
        return Axis("y", digits[:turned]), Axis("x", digits[turned:])
    return (Axis("x", digits),)


def _walk(spec: KernelSpec, passes: Passes) -> Walk:
    """Without reductions r is one more parallel axis, unless programs would then overwrite what others still read."""
    outer_stores = {
        store.buffer
        for role, member in zip(passes.roles, spec.members, strict=True)
        if role == "outer"
        for store in member.nest.stores
    }
    if "reduces" in passes.roles or outer_stores & passes.hazards:
        return "looped"
    return "parallel"


def _in_memory_order(digits: Digits, accesses: Sequence[Access], *, keep: bool) -> Digits:
    """Digits in the order of the largest access, when the given order suits none."""
    if not digits or (keep and any(access.contiguous(digits) for access in accesses)):
        return digits
    main = max(accesses, key=lambda a: (a.size(digits), a.store), default=None)
    if main is None:
        return digits
    return tuple(sorted(digits, key=lambda d: -main.coefficients.get(d[0], 1 << 62)))


def _transposed(digits: Digits, accesses: Sequence[Access]) -> int:
    """Where to split the digits in two axes so that every large access is contiguous along one; 0: nowhere."""
    largest = max((access.size(digits) for access in accesses), default=0)
    best = (0, 0)
    for access in accesses:
        if 4 * access.size(digits) < largest or access.coefficients.get(digits[-1][0] if digits else None) in (0, 1):
            continue
        for k, (symbol, size) in enumerate(digits[:-1]):
            if access.coefficients.get(symbol) == 1 and size >= 4:
                best = max(best, (access.size(digits), k + 1))
    return best[1]


def _broadcast(digits: Digits, accesses: Sequence[Access]) -> int:
    """Where to split the digits so that most loads vary along one axis alone, such as a row of weights; 0: nowhere.

    What is computed from such loads is then computed once for a column or row of a tile, not once for a point.
    """
    best = (0, 0)
    for k in range(1, len(digits)):
        outer, inner = digits[:k], digits[k:]
        row = math.prod(size for _, size in inner)
        if row < NARROWEST_ROW or row < ROW_USE * -(-row // _row_block(row)) * _row_block(row):
            continue
        moved = [(access.size(outer) > access.bits, access.size(inner) > access.bits) for access in accesses]
        best = max(best, (sum(one != other for one, other in moved), k))
    return best[1] if best[0] else 0


# --- block sizes ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tiled:
    """Axes with block sizes, and the number of warps."""

    axes: tuple[Axis, ...]
    num_warps: int


def choose_tile(
    axes: tuple[Axis, ...],
    accesses: Sequence[Access],
    pressure: Callable[[tuple[Axis, ...]], float],
    largest: int,
    passes: int,
) -> Tiled:
    """Blocks and warps.

    ``pressure`` says how many 32-bit values a tile element holds when r is walked as given; ``largest`` how many
    elements a tile that holds all of r may have; ``passes`` how often a loop would walk r.
    """
    if len(axes) == 1:
        tiled = _flat(axes[0], pressure(axes))
    elif axes[1].walk == "parallel":
        tiled = _plane(axes, accesses, pressure(axes))
    else:
        whole = (axes[0], replace(axes[1], walk="whole"))
        # sums across memory's direction are cheapest row after row, unless that means reading the rows again
        by_rows = passes == 1 and _coalesced(whole, accesses) > 1
        tiled = None if by_rows else _whole(whole, accesses, pressure(whole), largest)
        if tiled is None:
            looped = (axes[0], replace(axes[1], walk="looped"))
            tiled = _looped(looped, accesses, pressure(looped))
    return Tiled(_interpreted(tiled.axes), tiled.num_warps)


def power_of_two(size: int) -> int:
    """The least power of two that is no smaller."""
    return 1 << max(0, size - 1).bit_length()


def fits(elements: int, warps: int, pressure: float) -> bool:
    """Whether threads can hold their share of a tile."""
    return elements / (32 * warps) * pressure <= _REGISTERS[warps]


def _flat(axis: Axis, pressure: float) -> Tiled:
    block = 1024
    while block > 128 and (-(-axis.size // block) < PROGRAMS or not fits(block, 4, pressure)):
        block //= 2
    block = min(block, power_of_two(axis.size))
    return Tiled((replace(axis, block=block),), max(1, min(4, block // 32)))


def _plane(axes: tuple[Axis, ...], accesses: Sequence[Access], pressure: float) -> Tiled:
    """Two parallel axes: square where both have contiguous accesses, else long along the one that has."""
    first, second = axes
    bits = max((access.bits for access in accesses), default=32)
    large = _large(axes, accesses)
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
    """Pieces of rows, and several rows a thread, so that what varies along rows alone is computed once for them."""
    first, second = axes
    inner = _row_block(second.size)
    outer = min(4096 // inner, power_of_two(first.size))
    while outer > 1 and (
        -(-first.size // outer) * -(-second.size // inner) < PROGRAMS or not fits(outer * inner, 4, pressure)
    ):
        outer //= 2
    return Tiled((replace(first, block=outer), replace(second, block=inner)), max(1, min(4, outer * inner // 256)))


def _row_block(row: int) -> int:
    """The longest piece that leaves few lanes of the row's last piece idle."""
    block = WIDEST_ROW
    while block > NARROWEST_ROW and row < ROW_USE * -(-row // block) * block:
        block //= 2
    return block


def _large(axes: Iterable[Axis], accesses: Sequence[Access]) -> list[Access]:
    digits = tuple(digit for axis in axes for digit in axis.digits)
    largest = max((access.size(digits) for access in accesses), default=0)
    return [access for access in accesses if 4 * access.size(digits) >= largest]


def _coalesced(axes: tuple[Axis, ...], accesses: Sequence[Access]) -> int:
    """The least block of x that keeps large accesses along x in whole sectors of 32 bytes."""
    along = [access.bits for access in _large(axes, accesses) if access.contiguous(axes[0].digits)]
    return min(power_of_two(axes[0].size), 256 // min(along)) if along else 1


def _whole(axes: tuple[Axis, ...], accesses: Sequence[Access], pressure: float, largest: int) -> Tiled | None:
    """All of r in one tile; None when no number of warps can hold it."""
    x, r = axes
    inner = power_of_two(r.size)
    least = _coalesced(axes, accesses)
    block = max(least, min(power_of_two(x.size), 2048 // inner))
    while block > least and -(-x.size // block) < PROGRAMS:
        block //= 2
    while True:
        for warps in (1, 2, 4, 8, 16):
            # sums along the axis across memory are exchanged through registers: fewer elements a thread
            comfortable = block * inner <= (512 if least == 1 else 256) * warps or warps == 16
            if comfortable and block * inner <= largest and fits(block * inner, warps, pressure):
                return Tiled((replace(x, block=block), replace(r, block=inner)), warps)
        if block == least:
            return None
        block //= 2


def _looped(axes: tuple[Axis, ...], accesses: Sequence[Access], pressure: float) -> Tiled:
    """A block of r at a time: long along r, or wide along x where that is what memory runs along."""
    x, r = axes
    if _coalesced(axes, accesses) > 1:
        return _columns(axes, accesses, pressure)
    total = 2048
    while total > 256 and not fits(total, 8, pressure):
        total //= 2
    inner = max(1, min(power_of_two(r.size), total))
    return Tiled((replace(x, block=1), replace(r, block=inner)), max(1, min(8, inner // 128)))


def _columns(axes: tuple[Axis, ...], accesses: Sequence[Access], pressure: float) -> Tiled:
    """Lines of x and some rows: threads enough, with values enough each, that loads keep the memory busy."""
    x, r = axes
    block = min(WIDEST_COLUMNS, _row_block(x.digits[-1][1]), power_of_two(x.size))
    while block > NARROWEST_ROW // 2 and -(-x.size // block) < PROGRAMS:
        block //= 2
    programs = -(-x.size // block)
    warps = 2
    while warps < 16 and programs * warps < BUSY_WARPS:
        warps *= 2
    threads = 32 * min(programs * warps, 2 * BUSY_WARPS)
    loaded = sum(access.bits for access in _large(axes, accesses) if not access.store) // 8
    each = 4
    while each < 16 and each * threads * loaded < BYTES_IN_FLIGHT:
        each *= 2
    while each > 2 and each * pressure > COLUMN_REGISTERS:
        each //= 2
    inner = min(max(1, each * 32 * warps // block), power_of_two(r.size))
    while warps > 1 and block * inner < 64 * warps:
        warps //= 2
    return Tiled((replace(x, block=block), replace(r, block=inner)), warps)


def _interpreted(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Blocks for the interpreter, whose time goes by operations, not by elements: as large as may be.

    An axis that has no mask must not need one here either, and an index that a program's lanes share is shared here,
    too, if that does not take too many programs.
    """
    room = INTERPRETED_TILE
    found: list[Axis] = []
    for axis in reversed(axes):
        largest = power_of_two(axis.size) if axis.masked else axis.size & -axis.size
        block = axis.block if axis.walk == "whole" else max(axis.block, min(largest, _below(room)))
        shared = _shared(axis)
        if block > shared and -(-axis.size // shared) <= INTERPRETED_PROGRAMS:
            block = shared
        room = max(1, room // block)
        found.append(replace(axis, interpret_block=block))
    return tuple(reversed(found))


def _shared(axis: Axis) -> int:
    """The largest block under which the lanes of a program share all indices that they do under the axis' block."""
    below, found = 1, 1 << 62
    for _, size in reversed(axis.digits[1:]):
        below *= size
        if axis.walk == "parallel" and axis.block > 1 and below % axis.block == 0:
            found = min(found, below & -below)
    return found


def _below(size: int) -> int:
    return 1 << (max(1, size).bit_length() - 1)
