"""Choose the axes of a kernel's tile from its memory accesses, and how it is written. ``block_sizes`` has the sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import sympy

from optfuse.compiler.codegen.index_arithmetic import Atom, Axis, Linear, Walk, linearize
from optfuse.compiler.codegen.reduction_passes import Passes
from optfuse.compiler.ir.dtypes import BITS
from optfuse.compiler.ir.kernel_spec import KernelSpec, Member, rdigit, xdigit
from optfuse.compiler.ir.nodes import Buffer, Load, Store, ivar, rvar, tvar
from optfuse.compiler.ir.sizes import hint
from optfuse.compiler.ir.traversal import dot_in, loads, loads_under

Digits = tuple[tuple[sympy.Symbol, int], ...]
Loop = Literal["none", "persistent", "looped"]

#: The fewest points of a row that becomes an axis of its own, and the least share of its lanes that are points.
NARROWEST_ROW = 32
ROW_USE = 0.8
#: The longest piece of such a row.
WIDEST_ROW = 256
#: The shortest block of a row whose neighbouring lanes share accumulators.
LEAST_ROW = 256
#: Pipeline stages of a loop down columns, and the most bytes that a program loads ahead.
STAGES = 3
MOST_AHEAD = 24 << 10


@dataclass(frozen=True, slots=True)
class TileConfig:
    """Block sizes (kernel parameter, elements), warps and pipeline stages. ``loop``: whether there is a loop over r."""

    blocks: tuple[tuple[str, int], ...]
    num_warps: int
    num_stages: int
    loop: Loop

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> TileConfig:
        """The configuration of ``dataclasses.asdict``. Raises KeyError, TypeError or ValueError if it is malformed."""
        if data["loop"] not in get_args(Loop):
            raise ValueError(f"no way to walk r is called {data['loop']!r}")
        blocks = tuple((str(name), int(size)) for name, size in data["blocks"])
        return TileConfig(blocks, int(data["num_warps"]), int(data["num_stages"]), data["loop"])


@dataclass(frozen=True, slots=True)
class Access:
    """A load from or store to memory: its coefficients over the kernel's digits, and the element's bits.

    ``gathered`` are the digits that move the address by an index read from memory, in unknown steps.
    """

    coefficients: Mapping[sympy.Symbol, int]
    bits: int
    store: bool
    buffer: str = ""
    gathered: frozenset[sympy.Symbol] = frozenset()

    def at_hints(self) -> Access:
        """The access at the hints of its sizes, for choices that affect speed alone."""
        return replace(self, coefficients={symbol: hint(step) for symbol, step in self.coefficients.items()})

    def contiguous(self, digits: Digits) -> bool:
        """Whether neighbouring points of an axis of these digits are neighbours in memory."""
        return bool(digits) and self.coefficients.get(digits[-1][0]) == 1

    def size(self, digits: Digits) -> int:
        """Bits accessed, counted along the digits that move the address."""
        moving = (size for symbol, size in digits if self.coefficients.get(symbol) or symbol in self.gathered)
        return self.bits * hint(math.prod(moving))


def memory_accesses(spec: KernelSpec, buffers: Mapping[str, Buffer], passes: Passes) -> tuple[Access, ...]:
    """The memory accesses of a kernel; of gathers and windows the affine part, and what moves the rest."""
    known = {xdigit(k): Linear({xdigit(k): 1} if n > 1 else {}) for k, n in enumerate(spec.space.x)}
    known |= {rdigit(k): Linear({rdigit(k): 1} if n > 1 else {}) for k, n in enumerate(spec.space.r)}
    found = []
    for k, member in enumerate(spec.members):
        env = _variables(member, known)
        dot = dot_in(member.nest)
        factors = () if dot is None else (dot.left, dot.right)
        for load in loads(member.nest):
            if load.buffer not in passes.producers[k] and load not in factors:
                terms, gathered = _address(load, env)
                found.append(Access(terms, BITS[load.dtype], store=False, buffer=load.buffer, gathered=gathered))
        for store in member.nest.stores:
            if store.buffer in spec.stores:
                terms, gathered = _address(store, env)
                found.append(Access(terms, BITS[buffers[store.buffer].dtype], store=True, gathered=gathered))
    return tuple(found)


def _address(
    access: Load | Store, env: Mapping[sympy.Symbol, Linear]
) -> tuple[dict[sympy.Symbol, int], frozenset[sympy.Symbol]]:
    """The coefficients of an access, and the digits at whose points its indirect indices are read."""
    full = dict(env) | {tvar(j): Linear() for j in range(len(access.indirect))}
    read = (_address(load, env) for load in loads_under(access.indirect))
    gathered = frozenset(symbol for terms, further in read for symbol in (*terms, *further))
    return _digits_of(linearize(access.index, full, _dropped).terms), gathered


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
    if columns := _columns(spec):
        split = _split_at(columns, x)
        return Axis("y", x[:split]), Axis("x", x[split:])
    if r and all(role == "outer" for role in passes.roles):
        r = ()
    by_rows = any(role != "full" for role in passes.roles) or scans(spec)
    if r and by_rows and not (_is_free(spec, passes) and _runs_inside((x, r), accesses)):
        return Axis("x", _contiguous_last(x, r, accesses)), Axis("r", r, _walk(spec, passes))
    digits = _in_memory_order((*x, *r), accesses, keep=not r)
    turned = _transposed(digits, accesses) or _broadcast(digits, accesses)
    if turned:
        return Axis("y", digits[:turned]), Axis("x", digits[turned:])
    return (Axis("x", digits),)


def large_accesses(digits: Digits, accesses: Sequence[Access]) -> list[Access]:
    """The accesses of at least a quarter of the bits of the largest one."""
    largest = max((access.size(digits) for access in accesses), default=0)
    return [access for access in accesses if 4 * access.size(digits) >= largest]


def _is_free(spec: KernelSpec, passes: Passes) -> bool:
    """Whether a kernel has its points in any order: it reduces nothing, and stores nothing that is outside of r."""
    members = zip(passes.roles, spec.members, strict=True)
    outer = {store.buffer for role, member in members if role == "outer" for store in member.nest.stores}
    return _walk(spec, passes) == "parallel" and not outer & set(spec.stores)


def _runs_inside(axes: tuple[Digits, Digits], accesses: Sequence[Access]) -> bool:
    """Whether a large access runs along a digit that is not an axis' last: it needs an axis of its own.

    So it is where a norm is applied to an image with channels last, in groups of channels, and written with channels
    first.
    """
    inner = {symbol for digits in axes for symbol, _ in digits[:-1]}
    large = large_accesses((*axes[0], *axes[1]), accesses)
    return any(access.coefficients.get(symbol) == 1 for access in large for symbol in inner)


def _contiguous_last(x: Digits, r: Digits, accesses: Sequence[Access]) -> Digits:
    """The digits of x, ordered so that large accesses which do not run along r run along the last of them.

    They stay as they are if one does already. They are reordered for a transposed value whose producers and consumers
    all lie in memory the other way, and where rows of channels-last images are reduced and written as rows.
    """
    digits = (*x, *r)
    large = [access for access in large_accesses(digits, accesses) if not access.contiguous(r)]
    if any(access.contiguous(x) for access in large):
        return x
    run = {symbol: sum(a.size(digits) for a in large if a.coefficients.get(symbol) == 1) for symbol, _ in x}
    best = max(run, key=run.__getitem__, default=None)
    return x if best is None or not run[best] else tuple(sorted(x, key=lambda digit: digit[0] == best))


def _columns(spec: KernelSpec) -> int:
    """The columns of the kernel's product of matrices; 0 if it computes none."""
    return next((member.nest.sizes[1] for member in spec.members if dot_in(member.nest) is not None), 0)


def _split_at(columns: int, digits: Digits) -> int:
    """Where the digits of a product's columns begin."""
    return next(k for k in range(len(digits) + 1) if math.prod(size for _, size in digits[k:]) == columns)


def scans(spec: KernelSpec) -> bool:
    """Whether a member scans r."""
    return any(member.nest.scan is not None for member in spec.members)


def _walk(spec: KernelSpec, passes: Passes) -> Walk:
    """How r is walked: in parallel without reductions and scans, unless programs could overwrite what others read."""
    outer_stores = {
        store.buffer
        for role, member in zip(passes.roles, spec.members, strict=True)
        if role == "outer"
        for store in member.nest.stores
    }
    if "reduces" in passes.roles or scans(spec) or outer_stores & passes.hazards:
        return "looped"
    return "parallel"


def _in_memory_order(digits: Digits, accesses: Sequence[Access], *, keep: bool) -> Digits:
    """The digits in the memory order of the largest access, unless some access is contiguous in the given order."""
    if not digits or (keep and any(access.contiguous(digits) for access in accesses)):
        return digits
    main = max(accesses, key=lambda a: (a.size(digits), a.store), default=None)
    if main is None:
        return digits
    return tuple(sorted(digits, key=lambda d: -hint(main.coefficients.get(d[0], 1 << 62))))


def _transposed(digits: Digits, accesses: Sequence[Access]) -> int:
    """Where to split the digits in two axes so that large accesses are contiguous along one of them; 0: nowhere."""
    largest = max((access.size(digits) for access in accesses), default=0)
    best = (0, 0)
    for access in accesses:
        if 4 * access.size(digits) < largest or access.coefficients.get(digits[-1][0] if digits else None) in (0, 1):
            continue
        for k, (symbol, size) in enumerate(digits[:-1]):
            if access.coefficients.get(symbol) == 1 and hint(size) >= 4:
                best = max(best, (access.size(digits), k + 1))
    return best[1]


def _broadcast(digits: Digits, accesses: Sequence[Access]) -> int:
    """Where to split the digits so that most loads vary along one axis alone, such as a row of weights; 0: nowhere.

    Values computed from such loads are then computed once for a column or row of a tile, not for each point.
    """
    best = (0, 0)
    for k in range(1, len(digits)):
        outer, inner = digits[:k], digits[k:]
        row = hint(math.prod(size for _, size in inner))
        if row < NARROWEST_ROW or row < ROW_USE * -(-row // row_block(row)) * row_block(row):
            continue
        moved = [(access.size(outer) > access.bits, access.size(inner) > access.bits) for access in accesses]
        best = max(best, (sum(one != other for one, other in moved), k))
    return best[1] if best[0] else 0


def power_of_two(size: int) -> int:
    """The least power of two that is no smaller."""
    return 1 << max(0, size - 1).bit_length()


def row_block(row: int) -> int:
    """The longest piece of a row that leaves few lanes of its last piece idle."""
    block = WIDEST_ROW
    while block > NARROWEST_ROW and row < ROW_USE * -(-row // block) * block:
        block //= 2
    return block


def trims(axes: Sequence[Axis], accesses: Sequence[Access]) -> bool:
    """Whether the last, partial block of long rows has a loop of its own.

    The other blocks then need no mask; a mask that ends within a vector would split all vectors.
    """
    r = axes[-1]
    along = any(access.contiguous(r.digits) for access in accesses)
    return r.walk == "looped" and r.masked and along and hint(r.size) >= 4 * r.block


def prefetches(axes: Sequence[Axis], accesses: Sequence[Access]) -> bool:
    """Whether a loop down columns loads blocks ahead into shared memory: there are several, and they are small."""
    r = axes[-1]
    if r.walk != "looped" or r.block == 1 or hint(r.size) < 4 * r.block:
        return False
    digits = tuple(digit for axis in axes for digit in axis.digits)
    tiles = [a for a in accesses if not a.store and a.contiguous(axes[0].digits) and a.size(digits) > a.size(r.digits)]
    held = math.prod(axis.block for axis in axes) * sum(access.bits for access in tiles) // 8
    return bool(tiles) and (STAGES - 1) * held <= MOST_AHEAD


def turned(axes: Sequence[Axis], accesses: Sequence[Access]) -> bool:
    """Whether the tile is transposed: the last of two parallel axes comes first in its shape.

    Where no access looks contiguous to Triton, it gives neighbouring threads neighbours along the tile's first
    dimension. That is so for rows of 49 elements: their index is modulo 49, no power of two.
    """
    if len(axes) != 2 or any(axis.walk != "parallel" for axis in axes):
        return False
    digits = tuple(digit for axis in axes for digit in axis.digits)
    large = large_accesses(digits, accesses)
    hidden = any(access.contiguous(axes[1].digits) and _neighbours(axes[1], access) % 2 for access in large)
    return hidden and not any(access.contiguous(axes[0].digits) for access in large)


def _neighbours(axis: Axis, access: Access) -> int:
    """How many points of an axis, from a multiple of that number on, are contiguous in memory; 0: all of them."""
    points = 1
    for symbol, size in reversed(axis.digits):
        if hint(access.coefficients.get(symbol, 0)) != points:
            return points
        points *= hint(size)
    return 0
