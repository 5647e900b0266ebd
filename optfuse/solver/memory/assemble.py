"""Assemble a solution from a partition: writes, an order, offsets, and the totals."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from optfuse.problem.cost import default_writes, shared_saving, total_cost
from optfuse.problem.instance import Instance
from optfuse.problem.serialize import digest
from optfuse.problem.solution import Kernel, Placement, Solution
from optfuse.solver.memory.arena import Packing, Span, sweep
from optfuse.solver.memory.launch_order import in_launches
from optfuse.solver.memory.order_problem import (
    OrderProblem,
    lifetimes,
    live_bytes,
    live_spans,
    nearest_order,
    order_problem,
    precedences,
    program_order,
    running_sum,
)
from optfuse.solver.memory.reuse import arena_cells, pack_cells


def assemble(
    instance: Instance, partition: Iterable[tuple[Collection[int], int]], *, hurried: bool = False
) -> Solution:
    """A complete solution from pairs (ops, scheme), in the order nearest to the program's.

    ``hurried``: the arena is packed in one sweep.

    Raises:
        IllegalKernelError: When the kernels wait for each other in a cycle.
    """
    parts = list(partition)
    running = {op for ops, _ in parts for op in ops} if instance.variants else None
    kernels = [
        Kernel(
            tuple(sorted(ops)) if len(ops) > 1 else tuple(ops), scheme, default_writes(instance, ops, scheme, running)
        )
        for ops, scheme in parts
    ]
    if hurried:
        order = nearest_order([kernel.ops[0] for kernel in kernels], precedences(instance, kernels))
        return _as_given(instance, [kernels[number] for number in order])
    problem = order_problem(instance, kernels)
    return arrange(instance, kernels, problem, program_order(problem), hurried=hurried)


def _as_given(instance: Instance, kernels: Sequence[Kernel]) -> Solution:
    """``arrange(..., hurried=True)`` of kernels in the given order, computed faster."""
    ends, base = live_spans(instance, kernels)
    spans = _in_arena(instance, ends)
    living = [(instance.buffers[number].bytes, first, last) for number, first, last in ends]
    peak = max(running_sum(living, base, len(kernels)))
    return _solution(instance, kernels, spans, sweep(spans), peak)


def arrange(
    instance: Instance,
    kernels: Sequence[Kernel],
    problem: OrderProblem,
    order: Sequence[int],
    packing: Packing | None = None,
    *,
    hurried: bool = False,
    launches: Sequence[Sequence[int]] = (),
) -> Solution:
    """The solution that runs ``kernels`` in ``order``, with a quick packing unless ``packing`` is given.

    ``packing`` must be one of ``arena_spans(instance, problem, order, launches)``; ``hurried``, the packing is the
    quickest. ``launches``: the positions in ``order`` of kernels that share a launch.
    """
    timed, steps = in_launches(problem, order, launches)
    ends = lifetimes(timed, steps)
    spans = _spans(instance, timed, ends)
    ordered = [kernels[number] for number in order]
    if packing is None and hurried:
        packing = sweep(spans)
    elif packing is None:
        cells, joined = pack_cells(arena_cells(instance, ordered, spans, launches), deadline=0.0)
        packing = cells.apart(joined)
    found = _solution(instance, ordered, spans, packing, max(live_bytes(timed, steps, ends)))
    saved = shared_saving(instance, ordered, launches)
    return replace(found, launches=tuple(map(tuple, launches)), saved_ps=saved) if launches else found


def _solution(
    instance: Instance, kernels: Sequence[Kernel], spans: Sequence[Span], packing: Packing, peak: int
) -> Solution:
    offsets = sorted([(span.buffer, offset) for span, offset in zip(spans, packing.offsets, strict=True)])
    return Solution(
        instance_name=instance.name,
        instance_digest=digest(instance),
        kernels=tuple(kernels),
        placements=tuple([Placement(buffer, offset) for buffer, offset in offsets]),
        arena_bytes=packing.arena_bytes,
        objective=total_cost(instance, kernels),
        peak_bytes=peak,
    )


def arena_spans(
    instance: Instance, problem: OrderProblem, order: Sequence[int], launches: Sequence[Sequence[int]] = ()
) -> list[Span]:
    """The buffers placed in the arena, with their lifetimes in an order: no outputs, inputs or fixed buffers."""
    timed, steps = in_launches(problem, order, launches)
    return _spans(instance, timed, lifetimes(timed, steps))


def _spans(instance: Instance, problem: OrderProblem, ends: Iterable[tuple[int, int]]) -> list[Span]:
    return _in_arena(instance, ((s.buffer, *end) for s, end in zip(problem.storages, ends, strict=True)))


def _in_arena(instance: Instance, ends: Iterable[tuple[int, int, int]]) -> list[Span]:
    """Of triples (buffer, first, last), the spans of the buffers placed in the arena."""
    spans: list[Span] = []
    for number, first, last in ends:
        buffer = instance.buffers[number]
        if buffer.kind == "temporary" and not buffer.output and not buffer.fixed:
            spans.append(Span(number, buffer.bytes, first, last))
    return spans
