"""Reductions that can be run in several ways, each an alternative of which exactly one runs.

- *whole*: one kernel reduces; with few results it cannot fill the device.
- *split*: a nest of partial results over chunks, and one that combines them (``split``).
- *riding*: a sum over rows, done by a kernel that walks the rows for another reason. Each of its programs takes a run
  of rows, adds up the values that it sees anyway, and leaves one row of partial sums; a second nest adds those up.
  (TorchInductor's mix-order reduction.)

"emittable" offers the first two, "riding" what the rule of ``split`` says or a ride, "all" all three.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import sympy

from optfuse.extract.access import accesses
from optfuse.extract.digits import row_major
from optfuse.extract.placement import Placed
from optfuse.extract.split import combine, device_of, fresh, kept_results, plan_chunks, rename, split, with_results
from optfuse.extract.walks import DigitSpace, Walk, natural_cover, natural_walk, weights
from optfuse.ir.nodes import Buffer, LoopGraph, LoopNest, Op, Runs, Store, ivar, rvar
from optfuse.ir.verify_nest import result_dtypes
from optfuse.problem.instance import Device

VariantKinds = Literal["emittable", "riding", "all"]

#: How the first nest of a reduction that rides is called after it.
RIDE = "_ride"
#: A riding sum leaves so many rows of partial sums for each program that fills the device, fewer where rows are long,
#: whose programs have more warps: times the lanes of a row they are at most ``SHARED_LANES``.
FEWEST_SHARES, MOST_SHARES, SHARED_LANES = 2, 8, 4096
#: Fewer rows than this for each program that fills the device are not worth a ride, nor is a run of fewer rows.
LEAST_ROWS, LEAST_RUN = 16, 8
#: Longer rows do not ride: a program holds a whole one, and a running sum beside each of its values.
LONGEST_ROW = 4096
#: The share of a launch that a whole reduction must lose to idle programs for the split one to be offered.
SPLIT_PERCENT = 25


@dataclass(frozen=True, slots=True)
class Way:
    """Nests that do what one reduction says, the last of them its results; and their buffers of partial results."""

    nests: tuple[LoopNest, ...]
    partials: tuple[Buffer, ...] = ()


@dataclass(frozen=True, slots=True)
class Alternatives:
    """A graph that holds the ops of all alternatives, and which belong together.

    ``variants`` are tuples (name, alternatives as op positions), what runs by rule first.
    """

    graph: LoopGraph
    variants: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...]

    def rivals(self) -> dict[int, frozenset[int]]:
        """By op of a variant: the ops that cannot run when it does."""
        found: dict[int, frozenset[int]] = {}
        for _, alternatives in self.variants:
            every = {op for ops in alternatives for op in ops}
            for ops in alternatives:
                found |= dict.fromkeys(ops, frozenset(every - set(ops)))
        return found


def reduction_variants(
    graph: LoopGraph, device: Device, kinds: VariantKinds, rides: Callable[[str], bool] = lambda _: True
) -> Alternatives:
    """The graph with every way to run each reduction; ``rides`` says whether one of a name may ride."""
    ops: list[Op] = []
    buffers = list(graph.buffers)
    taken = {buffer.name for buffer in buffers}
    by_name = {buffer.name: buffer for buffer in buffers}
    variants: list[tuple[str, tuple[tuple[int, ...], ...]]] = []
    for op in graph.ops:
        if not isinstance(op, LoopNest):
            ops.append(op)
            continue
        alternatives: list[tuple[int, ...]] = []
        for way in _ways(op, by_name, device, kinds, taken, rides=rides(op.name)):
            alternatives.append(tuple(range(len(ops), len(ops) + len(way.nests))))
            ops += way.nests
            buffers += way.partials
        if len(alternatives) > 1:
            variants.append((op.name, tuple(alternatives)))
    return Alternatives(replace(graph, ops=tuple(ops), buffers=tuple(buffers)), tuple(variants))


def riding(graph: LoopGraph, device: Device, names: Collection[str]) -> LoopGraph:
    """The graph with those of its reductions riding that are named; the second of the two nests has the name."""
    ops: list[Op] = []
    buffers = list(graph.buffers)
    taken = {buffer.name for buffer in buffers}
    for op in graph.ops:
        if isinstance(op, LoopNest) and op.name in names:
            way = ride(op, device, taken, device_of(op, buffers))
            ops += [way.nests[0], replace(way.nests[1], name=op.name)]
            buffers += way.partials
        else:
            ops.append(op)
    return replace(graph, ops=tuple(ops), buffers=tuple(buffers))


def riders(graph: LoopGraph) -> frozenset[str]:
    """The names of the reductions of which a graph, made by ``riding``, holds the two nests."""
    return frozenset(op.name.removesuffix(RIDE) for op in graph.ops if isinstance(op, LoopNest) and op.runs)


def _ways(
    nest: LoopNest,
    buffers: Mapping[str, Buffer],
    device: Device,
    kinds: VariantKinds,
    taken: set[str],
    *,
    rides: bool,
) -> list[Way]:
    """Every way to run a nest, the one by rule first."""
    by_rule = kinds == "riding"
    ways = [Way((nest,))]
    where = device_of(nest, list(buffers.values()))
    chunks = plan_chunks(nest, buffers, device, **({} if by_rule else {"least_percent": SPLIT_PERCENT}))
    if chunks is not None:
        names = [fresh(f"{nest.name}_partial{k}", taken) for k in range(len(kept_results(nest)))]
        first, second, partials = split(nest, chunks, names, where)
        if by_rule:
            ways = [Way((first, second), partials)]
        else:
            ways.append(Way((first, replace(second, name=f"{nest.name}_combine")), partials))
    if kinds != "emittable" and rides and _may_ride(nest, device):
        ways.append(ride(nest, device, taken, where))
    return ways


def _may_ride(nest: LoopNest, device: Device) -> bool:
    """Whether a nest is sums over rows, each long enough: what it keeps is what memory runs along."""
    if not nest.reductions or any(reduction.kind != "sum" for reduction in nest.reductions):
        return False
    kept, rows = prod(int(s) for s in nest.sizes), prod(int(r) for r in nest.rsizes)
    walk = natural_walk(natural_cover(nest, accesses(nest)))
    longest = min(LONGEST_ROW, device.persistent_elements)
    return walk.by_columns and 1 < kept <= longest and rows >= LEAST_ROWS * device.saturating_programs


def run_length(nest: LoopNest, device: Device) -> int:
    """How many rows each program takes: programs enough, and no fewer rows in the last block of one than in others."""
    kept, rows = prod(int(s) for s in nest.sizes), prod(int(r) for r in nest.rsizes)
    shares = min(MOST_SHARES, max(FEWEST_SHARES, SHARED_LANES // (1 << (kept - 1).bit_length())))
    least = max(LEAST_RUN, -(-rows // (device.saturating_programs * shares)))
    step = 1 << (max(1, least // 8).bit_length() - 1)
    return -(-least // step) * step


def ride(nest: LoopNest, device: Device, taken: set[str], where: str) -> Way:
    """The nest that adds up each run of rows, and the one that adds up the runs.

    The first walks all points in the order in which memory holds them. ``taken`` are names of buffers, ``where`` is
    where the nest runs.
    """
    digits = [pieces[0].digit for pieces in natural_cover(nest, accesses(nest)).dimensions]
    kept = sorted(range(len(nest.sizes)), key=lambda k: -digits[k].stride)
    rows = sorted(range(len(nest.sizes), len(digits)), key=lambda k: -digits[k].stride)
    every = (*(int(s) for s in nest.sizes), *(int(r) for r in nest.rsizes))
    place = {k: position for position, k in enumerate((*rows, *kept))}
    points = {ivar(k) if k < len(kept) else rvar(k - len(kept)): ivar(place[k]) for k in place}
    runs = Runs(len(rows), run_length(nest, device))
    sizes = tuple(every[k] for k in place)
    shape = (runs.count(sizes), *every[: len(kept)])
    dtypes = result_dtypes(nest.reductions)
    names = [fresh(f"{nest.name}_ride{k}", taken) for k in range(len(dtypes))]
    partials = tuple(
        Buffer(name, dtypes[k], shape, row_major(shape), device=where)
        for name, k in zip(names, kept_results(nest), strict=True)
    )
    index = sympy.Add(*(t * ivar(place[k]) for k, t in enumerate(row_major(every[: len(kept)])) if every[k] > 1))
    stores = tuple(
        Store(partial.name, index, rename(reduction.operand, points))
        for partial, reduction in zip(partials, nest.reductions, strict=True)
    )
    first = LoopNest(f"{nest.name}{RIDE}", sizes, (), (), stores, nest.origin, runs)
    reductions, results = combine(nest, dict(zip(kept_results(nest), partials, strict=True)), shape[:1], 1)
    second = LoopNest(
        f"{nest.name}_rows",
        nest.sizes,
        (sympy.Integer(shape[0]),),
        reductions,
        tuple(replace(store, value=with_results(store.value, results)) for store in nest.stores),
        nest.origin,
    )
    return Way((first, second), partials)


def can_ride(nest: LoopNest, placed: Placed, walk: Walk, space: DigitSpace, device: Device) -> bool:
    """Whether the kernels of a walk see whole rows, in order: x counts the rows of a nest of partial sums, and r runs
    along what the sums keep, in one pass.
    """
    assert nest.runs is not None, "asked of nests that ride"
    if walk.by_columns or prod(digit.size for digit in walk.r) > min(LONGEST_ROW, device.persistent_elements):
        return False
    rows, first, width = weights(placed.cover, placed.fit, space), nest.runs.dimensions, len(space.x)
    steps = row_major([int(size) for size in nest.sizes[:first]])
    number = [sum(t * row[k] for t, row in zip(steps, rows[:first], strict=True)) for k in range(len(rows[0]))]
    in_order = number == [digit.stride for digit in space.x_line] + [0] * len(space.r)
    return in_order and not any(any(row[:width]) for row in rows[first:])
