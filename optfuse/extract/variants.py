"""Reductions that can be run in several ways, each an alternative of which exactly one runs.

- *whole*: one kernel reduces; with few results it cannot fill the device.
- *split*: a nest of partial results over chunks, and one that combines them (``split``).
- *riding*: a sum over rows, done by a kernel that walks the rows for another reason. Each of its programs adds up the
  rows that it sees anyway and leaves one row of partial sums; a second nest adds those up. (TorchInductor's mix-order
  reduction.)

Code generation knows the first two: they are the "emittable" kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import sympy

from optfuse.extract.access import accesses
from optfuse.extract.digits import row_major
from optfuse.extract.placement import Placed
from optfuse.extract.split import combine, device_of, fresh, kept_results, plan_chunks, rename, split, with_results
from optfuse.extract.walks import DigitSpace, Walk, natural_cover, natural_walk, weights
from optfuse.ir.nodes import Buffer, LoopGraph, LoopNest, Op, Store, ivar, rvar
from optfuse.ir.verify_nest import result_dtypes
from optfuse.problem.instance import Device, Offer

VariantKinds = Literal["emittable", "all"]

#: A riding sum leaves this many rows of partial sums for each program that fills the device.
ROWS_PER_PROGRAM = 2
#: Fewer rows than this many times the rows of partial sums are not worth a ride.
LEAST_ROWS = 8
#: The share of a launch that a whole reduction must lose to idle programs for the split one to be offered.
SPLIT_PERCENT = 25


@dataclass(frozen=True, slots=True)
class Alternatives:
    """A graph that holds the ops of all alternatives, and which belong together.

    ``variants`` are tuples (name, alternatives as op positions), the whole reduction first. ``riders`` are the ops that
    accumulate in another kernel's walk over rows, with the number of their dimensions that the sums keep (the first).
    """

    graph: LoopGraph
    variants: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...]
    riders: Mapping[int, int]

    def rivals(self) -> dict[int, frozenset[int]]:
        """By op of a variant: the ops that cannot run when it does."""
        found: dict[int, frozenset[int]] = {}
        for _, alternatives in self.variants:
            every = {op for ops in alternatives for op in ops}
            for ops in alternatives:
                found |= dict.fromkeys(ops, frozenset(every - set(ops)))
        return found


def reduction_variants(
    graph: LoopGraph, device: Device, kinds: VariantKinds, no_ride: frozenset[str] = frozenset()
) -> Alternatives:
    """The graph with every way to run each reduction; those named in ``no_ride`` do not ride."""
    ops: list[Op] = []
    buffers = list(graph.buffers)
    taken = {buffer.name for buffer in buffers}
    by_name = {buffer.name: buffer for buffer in buffers}
    variants: list[tuple[str, tuple[tuple[int, ...], ...]]] = []
    riders: dict[int, int] = {}
    for op in graph.ops:
        allowed: VariantKinds = "emittable" if op.name in no_ride else kinds
        ways = _ways(op, by_name, device, allowed, taken) if isinstance(op, LoopNest) else []
        place = len(ops)
        ops.append(op)
        alternatives: list[tuple[int, ...]] = [(place,)]
        for nests, partials, rides in ways:
            alternatives.append(tuple(range(len(ops), len(ops) + len(nests))))
            riders.update({len(ops): len(nests[1].sizes)} if rides else {})
            ops += nests
            buffers += partials
        if ways:
            variants.append((op.name, tuple(alternatives)))
    return Alternatives(replace(graph, ops=tuple(ops), buffers=tuple(buffers)), tuple(variants), riders)


def _ways(
    nest: LoopNest, buffers: Mapping[str, Buffer], device: Device, kinds: VariantKinds, taken: set[str]
) -> list[tuple[tuple[LoopNest, ...], tuple[Buffer, ...], bool]]:
    """(nests, buffers of partial results, whether the first rides) of each way but the whole."""
    ways: list[tuple[tuple[LoopNest, ...], tuple[Buffer, ...], bool]] = []
    chunks = plan_chunks(nest, buffers, device, least_percent=SPLIT_PERCENT)
    where = device_of(nest, list(buffers.values()))
    if chunks is not None:
        names = [fresh(f"{nest.name}_partial{k}", taken) for k in range(len(kept_results(nest)))]
        first, second, partials = split(nest, chunks, names, where)
        ways.append(((first, replace(second, name=f"{nest.name}_combine")), partials, False))
    if kinds == "all" and _may_ride(nest, device):
        names = [fresh(f"{nest.name}_ride{k}", taken) for k in range(len(kept_results(nest)))]
        first, second, partials = ride(nest, device.saturating_programs * ROWS_PER_PROGRAM, names, where)
        ways.append(((first, second), partials, True))
    return ways


def _may_ride(nest: LoopNest, device: Device) -> bool:
    """Whether a nest is sums over rows, each long enough: what it keeps is what memory runs along."""
    if not nest.reductions or any(reduction.kind != "sum" for reduction in nest.reductions):
        return False
    kept, rows = prod(int(s) for s in nest.sizes), prod(int(r) for r in nest.rsizes)
    walk = natural_walk(natural_cover(nest, accesses(nest)))
    return walk.by_columns and kept > 1 and rows >= LEAST_ROWS * device.saturating_programs * ROWS_PER_PROGRAM


def ride(nest: LoopNest, rows: int, names: Sequence[str], device: str) -> tuple[LoopNest, LoopNest, tuple[Buffer, ...]]:
    """The nest that hands each point's value to its program's sum, and the one that adds up ``rows`` rows of them.

    The first is stated as a nest over all points that stores to the partial sums; that each address gathers many points
    is what code generation has to know about riders.
    """
    sizes = tuple(int(s) for s in nest.sizes)
    every = (*sizes, *(int(r) for r in nest.rsizes))
    dtypes = result_dtypes(nest.reductions)
    shape = (rows, *sizes)
    partials = tuple(
        Buffer(name, dtypes[k], shape, row_major(shape), device=device)
        for name, k in zip(names, kept_results(nest), strict=True)
    )
    points = {rvar(k): ivar(k + len(sizes)) for k in range(len(nest.rsizes))}
    index = sympy.Add(*(t * ivar(k) for k, t in enumerate(_results_last(every, len(sizes))) if every[k] > 1))
    first = LoopNest(
        f"{nest.name}_ride",
        every,
        (),
        (),
        tuple(
            Store(partial.name, index, rename(reduction.operand, points))
            for partial, reduction in zip(partials, nest.reductions, strict=True)
        ),
        nest.origin,
    )
    reductions, results = combine(nest, dict(zip(kept_results(nest), partials, strict=True)), (rows,), 1)
    second = LoopNest(
        f"{nest.name}_rows",
        nest.sizes,
        (sympy.Integer(rows),),
        reductions,
        tuple(replace(store, value=with_results(store.value, results)) for store in nest.stores),
        nest.origin,
    )
    return first, second, partials


def _results_last(sizes: Sequence[int], kept: int) -> tuple[int, ...]:
    """Strides of a tensor with the reduced dimensions outermost."""
    order = [*range(kept, len(sizes)), *range(kept)]
    strides = row_major([sizes[k] for k in order])
    return tuple(strides[order.index(k)] for k in range(len(sizes)))


def can_ride(kept: int, placed: Placed, walk: Walk, space: DigitSpace, device: Device) -> bool:
    """Whether the kernels of a walk see whole rows: x counts rows and r runs along what the sums keep, in one pass.

    ``kept`` is the number of the rider's dimensions that the sums keep; they are its first.
    """
    if not walk.r or walk.by_columns or prod(digit.size for digit in walk.r) > device.persistent_elements:
        return False
    rows = weights(placed.cover, placed.fit, space)
    width = len(space.x)
    return not any(any(row[:width]) for row in rows[:kept]) and not any(any(row[width:]) for row in rows[kept:])


def without_place(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """A rider's offers: nothing lies in place of what it adds up."""
    return tuple(replace(o, writes=tuple(replace(write, place=0) for write in o.writes)) for o in offers)
