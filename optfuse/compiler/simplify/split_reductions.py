"""Split long reductions with few results into two stages: one program a result would leave the device idle.

A column sum of (200704, 96) has 96 results, and its kernel a handful of programs. It becomes a nest of partial results
over chunks of the rows and a nest that combines them, both ordinary ops that fuse like any other. This is decided
before the solver, by a rule: a reduction is split if the time that idle programs lose, in any kernel that holds it
whole, exceeds two launches.

A group norm of an image with channels last sums up a few neighbouring channels of each pixel, and the next group's lie
beside them: a program would read a piece of each row. Where rows are too many to be held, the nest of partial results
sums up each channel, whole rows at a time, and the second one the channels of a group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, prod

import sympy

from optfuse.compiler.analysis.access import NestAccesses, accesses
from optfuse.compiler.analysis.iteration_orders import natural_cover, natural_walk
from optfuse.compiler.analysis.memory_traffic import scheme_of
from optfuse.compiler.analysis.op_work import ITEM_BYTES, touched_bytes
from optfuse.compiler.ir.buffer_layout import row_major
from optfuse.compiler.ir.dtypes import FLOATING, integer_range
from optfuse.compiler.ir.nodes import (
    Buffer,
    Call,
    Const,
    Expr,
    Guard,
    Iota,
    Load,
    LoopGraph,
    LoopNest,
    Op,
    Reduction,
    Result,
    Store,
    ivar,
    rvar,
)
from optfuse.compiler.ir.sizes import Size, divides, divisors, hint
from optfuse.compiler.ir.verify_nest import result_dtypes
from optfuse.compiler.simplify.expressions import chosen, guarded, rename, with_results
from optfuse.problem.cost import MIB
from optfuse.problem.instance import Device

#: A reduction is split if idle programs lose more than this percentage of a launch.
LOST_PERCENT = 200
#: The fewest chunks that are worth a second stage.
FEWEST_CHUNKS = 4
#: Programs of the first stage that are aimed at, in multiples of those that saturate the device.
WAVES = 8
#: Columns of one program's tile where there are enough of them.
WIDE_TILE = 64
#: The fewest points of a chunk.
SHORTEST_CHUNK = 64

#: Equal chunks may be so many times fewer, or more, than wanted; where none are, the last one is shorter than others.
NEAR, FINER = 4, 8

#: Bytes of neighbours that a reduction reads without waste, and how few of them cost more than reading points twice,
#: where a kernel can hold a row: one of at most so many points.
LINE_BYTES, FEW_BYTES = 128, 8
HELD_POINTS = 16_384

#: Reductions whose partial results are combined by the same reduction.
SELF_MERGING = frozenset({"sum", "prod", "max", "min", "any", "all"})


#: The nest of partial results, the nest that combines them, and the buffers of partial results.
Stages = tuple[LoopNest, LoopNest, tuple[Buffer, ...]]


@dataclass(frozen=True, slots=True)
class Chunks:
    """How r is chunked: by its first ``whole`` dimensions, and by ``parts`` parts of the next one (0: none).

    The parts are equal, or of ``length`` points each, if that is not 0, but for the last, which has what is left over.
    """

    whole: int
    parts: int
    length: int = 0

    def sizes(self, rsizes: Sequence[int]) -> tuple[int, ...]:
        """The sizes of the dimensions over chunks."""
        return (*rsizes[: self.whole], *((self.parts,) if self.parts else ()))

    def inside(self, rsizes: Sequence[int]) -> tuple[int, ...]:
        """The sizes of the dimensions within a chunk."""
        if not self.parts:
            return tuple(rsizes[self.whole :])
        return (self.each(rsizes), *rsizes[self.whole + 1 :])

    def each(self, rsizes: Sequence[int]) -> int:
        """The points of a part, along the dimension that is in parts."""
        return self.length or rsizes[self.whole] // self.parts


def split_reductions(graph: LoopGraph, device: Device) -> LoopGraph:
    """The graph with every reduction that leaves the device idle in two nests. Only the order of additions changes.

    >>> show("split_reductions", lambda x: x.sum(0), single(16384, 64))
    before:
      sum_1: for i0 < 64  # aten.sum.dim_IntList
        s0 = sum of tensors_0[i0 + 64*r0] for r0 < 16384
        sum_1[i0] = s0
    after:
      sum_1_partial: for i0 < 256, i1 < 64  # aten.sum.dim_IntList
        s0 = sum of tensors_0[4096*i0 + i1 + 64*r0] for r0 < 64
        sum_1_partial0[64*i0 + i1] = s0
      sum_1: for i0 < 64  # aten.sum.dim_IntList
        s0 = sum of sum_1_partial0[i0 + 64*r0] for r0 < 256
        sum_1[i0] = s0
    """
    ops: list[Op] = []
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    partials: list[Buffer] = []
    taken = set(buffers)
    periods: dict[str, int] = {}
    for op in graph.ops:
        if isinstance(op, LoopNest) and _is_mergeable(op):
            op = _neighbours_first(op, buffers)
        chunks = plan_chunks(op, buffers, device, periods) if isinstance(op, LoopNest) else None
        if isinstance(op, LoopNest):
            periods |= dict.fromkeys((store.buffer for store in op.stores), period(op, periods))
        if chunks is None or not isinstance(op, LoopNest):
            ops.append(op)
            continue
        names = [fresh(f"{op.name}_partial{k}", taken) for k in range(len(kept_results(op)))]
        first, second, made = split(op, chunks, names, buffers[op.stores[0].buffer].device)
        ops += [first, second]
        partials += made
    return replace(graph, ops=tuple(ops), buffers=(*graph.buffers, *partials))


def period(nest: LoopNest, periods: Mapping[str, int]) -> int:
    """How many points of an image a nest writes, where it cuts a changing number of images out of larger ones; else 1.

    A nest that reads such a result point by point has its period. ``periods`` has those of the nests before it, by the
    buffers that they write.
    """
    first, *rest = nest.sizes or (1,)
    if nest.reductions or any(isinstance(size, Size) for size in rest):
        return 1
    if len(rest) > 1:
        steps = [access.coefficients and [*map(hint, access.coefficients)] for access in accesses(nest).loads]
        cut = steps != [] and all(each and each == sorted(each, reverse=True) for each in steps)
        return prod(rest) if cut and isinstance(first, Size) else 1
    loads = [load for load in accesses(nest).loads if load.load is None or ivar(0) in load.load.index.free_symbols]
    point = ivar(0) * prod(rest) + ivar(1) if rest else ivar(0)
    point_by_point = all(access.load is not None and access.load.index == point for access in loads)
    return max((periods.get(access.buffer, 1) for access in loads), default=1) if point_by_point else 1


def plan_chunks(
    nest: LoopNest, buffers: Mapping[str, Buffer], device: Device, periods: Mapping[str, int] | None = None
) -> Chunks | None:
    """How to chunk a nest's r dimensions; None where it does not pay or they cannot be split.

    It pays if idle programs lose more than ``LOST_PERCENT`` of a launch, or if the first dimension is of neighbours
    that are too few to be read without waste: it is divided then. Chunks are equal where about as many equal ones are
    possible as are wanted; a size that has no such divisor has a shorter chunk at the end. Where images are read that
    ``period`` knows, a chunk is an image or an equal part of one, as the loops are that cut them: they can share a
    kernel.
    """
    if not _is_mergeable(nest):
        return None
    touched = accesses(nest)
    rsizes = nest.rsizes
    neighbours = int(0 in _neighbours(nest, touched, buffers))
    programs = -(-hint(prod(nest.sizes)) * rsizes[0] // WIDE_TILE) if neighbours else _programs(nest, touched)
    sizes = (*nest.sizes, *nest.rsizes)
    read = max((touched_bytes(access, sizes, buffers[access.buffer]) for access in touched.loads), default=0)
    at_full_rate = read * device.dram_ps_per_mib // MIB
    if at_full_rate * (device.saturating_programs - programs) * 100 <= LOST_PERCENT * device.launch_ps * programs:
        return Chunks(1, 0) if neighbours else None
    limit = hint(prod(rsizes)) // SHORTEST_CHUNK
    wanted = -(-device.saturating_programs * WAVES // programs)
    wanted = min(wanted * rsizes[0] if neighbours else wanted, limit)
    whole = neighbours
    while whole < len(rsizes) and hint(prod(rsizes[: whole + 1])) <= wanted:
        whole += 1
    counted = hint(prod(rsizes[:whole]))
    if whole == len(rsizes):
        return Chunks(whole, 0) if counted >= FEWEST_CHUNKS else None
    most, limit = wanted // max(counted, 1), limit // max(counted, 1)
    lengths = [] if whole else _parts_of_images(nest, touched, periods or {})
    number = {length: hint(rsizes[0]) // length for length in lengths if length >= SHORTEST_CHUNK}
    near = [length for length in number if number[length] <= NEAR * most]
    if near:
        return Chunks(0, rsizes[0] // min(near, key=lambda length: abs(number[length] - most)))
    equal = divisors(rsizes[whole])
    parts = max((d for d in equal if d <= most), default=1)
    if parts * NEAR <= most:
        parts = max(d for d in equal if d <= max(1, min(FINER * most, limit)))
    if parts * NEAR <= most and all(r.kind in SELF_MERGING for r in nest.reductions):
        length = -(-hint(rsizes[whole]) // most)
        return Chunks(whole, -(-rsizes[whole] // length), length)
    enough = neighbours or counted * parts >= FEWEST_CHUNKS
    return Chunks(whole, parts if parts > 1 else 0) if enough else None


def _is_mergeable(nest: LoopNest) -> bool:
    """Whether a nest reduces, and its results follow from those of parts of r, in any order: no position does."""
    return bool(nest.reductions) and all(r.kind in SELF_MERGING or r.kind == "welford" for r in nest.reductions)


def _programs(nest: LoopNest, touched: NestAccesses) -> int:
    """The programs of a kernel that holds the nest whole."""
    walk = natural_walk(natural_cover(nest, touched))
    scheme = scheme_of(walk)
    return -(-scheme.x // WIDE_TILE) if walk.by_columns else scheme.parallel


def _neighbours_first(nest: LoopNest, buffers: Mapping[str, Buffer]) -> LoopNest:
    """The nest, with the r dimension first that is of a few neighbours in memory, if there is one."""
    found = _neighbours(nest, accesses(nest), buffers) if len(nest.rsizes) > 1 else set()
    if not found or 0 in found:
        return nest
    first = min(found)
    order = [first, *(k for k in range(len(nest.rsizes)) if k != first)]
    renaming = {rvar(old): rvar(new) for new, old in enumerate(order)}
    return replace(
        nest,
        rsizes=tuple(nest.rsizes[k] for k in order),
        reductions=tuple(replace(each, operand=rename(each.operand, renaming)) for each in nest.reductions),
    )


def _neighbours(nest: LoopNest, touched: NestAccesses, buffers: Mapping[str, Buffer]) -> set[int]:
    """The r dimensions along which a large load has a few neighbours in memory, beside those of another result."""
    if len(nest.rsizes) < 2:
        return set()
    most = FEW_BYTES if hint(prod(nest.rsizes)) <= HELD_POINTS else LINE_BYTES - 1
    sizes, columns = (*nest.sizes, *nest.rsizes), len(nest.sizes)
    read = {access: touched_bytes(access, sizes, buffers[access.buffer]) for access in touched.loads}
    return {
        k
        for access in read
        for k, size in enumerate(nest.rsizes)
        if access.coefficients is not None
        and not isinstance(size, Size)
        and access.coefficients[columns + k] == 1
        and size in access.coefficients[:columns]
        and size * ITEM_BYTES.get(buffers[access.buffer].dtype, 8) <= most
        and 4 * read[access] >= max(read.values())
    }


def _parts_of_images(nest: LoopNest, touched: NestAccesses, periods: Mapping[str, int]) -> list[int]:
    """Of the images that a nest sums up: the rows that an equal part of one can have, fewest first."""
    points = max((periods.get(access.buffer, 1) for access in touched.loads), default=1)
    columns = prod(nest.sizes)
    if isinstance(columns, Size) or not isinstance(nest.rsizes[0], Size) or points % columns:
        return []
    return [rows for rows in divisors(points // columns) if divides(rows, nest.rsizes[0])]


def split(nest: LoopNest, chunks: Chunks, names: Sequence[str], device: str) -> Stages:
    """The two stages of a reduction; partial results have one buffer each, with chunks outermost."""
    rsizes = nest.rsizes
    outer = chunks.sizes(rsizes)
    inner = chunks.inside(rsizes)
    shape = (*outer, *nest.sizes)
    renaming = _renaming(nest, chunks, rsizes)
    end = Guard(renaming[rvar(chunks.whole)], 0, rsizes[chunks.whole]) if chunks.length else None
    dtypes = result_dtypes(nest.reductions)
    kept = kept_results(nest)
    strides = row_major(shape)
    index = sympy.Add(*(t * ivar(k) for k, t in enumerate(strides) if shape[k] > 1))
    buffers = tuple(Buffer(name, dtypes[k], shape, strides, device=device) for name, k in zip(names, kept, strict=True))
    first = LoopNest(
        f"{nest.name}_partial",
        shape,
        inner,
        tuple(Reduction(r.kind, _inside(rename(r.operand, renaming), r.kind, end)) for r in nest.reductions),
        tuple(Store(b.name, index, Result(k, dtypes[k])) for b, k in zip(buffers, kept, strict=True)),
        nest.origin,
    )
    reductions, results = combine(nest, dict(zip(kept, buffers, strict=True)), outer, prod(inner))
    second = LoopNest(
        nest.name,
        nest.sizes,
        outer,
        reductions,
        tuple(replace(store, value=with_results(store.value, results)) for store in nest.stores),
        nest.origin,
    )
    return first, second, buffers


def combine(
    nest: LoopNest, partials: Mapping[int, Buffer], outer: tuple[int, ...], points: int
) -> tuple[tuple[Reduction, ...], dict[int, Expr]]:
    """Reductions over the chunks, and the expression of each result of the whole nest.

    Chunks have equal sizes, so the mean is the mean of the chunks' means, and the squared deviations add up to those
    inside the chunks plus ``points`` times those of the means.
    """
    strides = row_major((*outer, *nest.sizes))
    index = sympy.Add(
        *(t * rvar(k) for k, t in enumerate(strides[: len(outer)]) if outer[k] > 1),
        *(t * ivar(k) for k, t in enumerate(strides[len(outer) :]) if nest.sizes[k] > 1),
    )
    reductions: list[Reduction] = []
    results: dict[int, Expr] = {}
    old = new = 0
    for reduction in nest.reductions:
        if reduction.kind == "welford":
            mean, m2 = (Load(partials[k].name, index, partials[k].dtype) for k in (old, old + 1))
            dtype = mean.dtype
            reductions += [Reduction("welford", mean), Reduction("sum", m2)]
            spread = Call("mul", (Result(new + 1, dtype), _count(points, dtype)), dtype)
            results[old] = Result(new, dtype)
            results[old + 1] = Call("add", (Result(new + 3, dtype), spread), dtype)
            results[old + 2] = _count(points * prod(outer), dtype)
            old, new = old + 3, new + 4
        else:
            load = Load(partials[old].name, index, partials[old].dtype)
            reductions.append(Reduction(reduction.kind, load))
            results[old] = Result(new, load.dtype)
            old, new = old + 1, new + 1
    return tuple(reductions), results


def _count(points: int, dtype: str) -> Expr:
    """A number of points as a float; where sizes change it is converted in the kernel."""
    if isinstance(points, Size) and points < 2**31:
        return Call("cast", (Const(points, "int32"),), dtype)
    return Const(float(points), dtype)


def kept_results(nest: LoopNest) -> tuple[int, ...]:
    """The results that need a buffer of partial results: all but the counts, which are constants."""
    kept: list[int] = []
    k = 0
    for reduction in nest.reductions:
        kept += [k, k + 1] if reduction.kind == "welford" else [k]
        k += 3 if reduction.kind == "welford" else 1
    return tuple(kept)


def _renaming(nest: LoopNest, chunks: Chunks, rsizes: tuple[int, ...]) -> dict[sympy.Symbol, sympy.Expr]:
    """The nest's variables in terms of the first stage's: chunk dimensions are the first parallel ones."""
    extra = len(chunks.sizes(rsizes))
    renaming: dict[sympy.Symbol, sympy.Expr] = {ivar(k): ivar(k + extra) for k in range(len(nest.sizes))}
    inside = 0
    for k in range(len(rsizes)):
        if k < chunks.whole:
            renaming[rvar(k)] = ivar(k)
        elif k == chunks.whole and chunks.parts:
            renaming[rvar(k)] = ivar(k) * chunks.each(rsizes) + rvar(0)
            inside = 1
        else:
            renaming[rvar(k)] = rvar(inside)
            inside += 1
    return renaming


def _inside(operand: Expr, kind: str, end: Guard | None) -> Expr:
    """An operand that is the reduction's identity beyond ``end``, where it touches no memory."""
    if end is None:
        return operand
    held = Call("lt", (Iota(end.expr, "int64"), Const(end.upper, "int64")), "bool")
    return chosen(held, guarded(operand, (end,), held), _identity(kind, operand.dtype))


def _identity(kind: str, dtype: str) -> Const:
    """What changes no result of a reduction of that kind."""
    if dtype == "bool":
        return Const(kind in ("all", "prod", "min"), dtype)
    floating = dtype in FLOATING
    match kind:
        case "max":
            return Const(-inf if floating else integer_range(dtype)[0], dtype)
        case "min":
            return Const(inf if floating else integer_range(dtype)[1], dtype)
        case _:
            number = 1 if kind == "prod" else 0
            return Const(float(number) if floating else number, dtype)


def fresh(name: str, taken: set[str]) -> str:
    """``name``, with underscores appended until it is new; it is added to ``taken``."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name
