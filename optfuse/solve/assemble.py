"""From a partition to a whole solution: writes, an order, offsets, and the totals."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from optfuse.problem.cost import default_writes, kernel_cost
from optfuse.problem.instance import Instance
from optfuse.problem.serialize import digest
from optfuse.problem.solution import Kernel, Placement, Solution
from optfuse.solve.arena import Packing, Span, sweep
from optfuse.solve.memory import OrderProblem, lifetimes, live_bytes, order_problem, program_order
from optfuse.solve.reuse import arena_cells, pack_cells


def assemble(
    instance: Instance, partition: Iterable[tuple[Collection[int], int]], *, hurried: bool = False
) -> Solution:
    """A complete solution from pairs (ops, scheme), in the order nearest to the program's.

    ``hurried``: the arena is packed in one sweep.

    Raises:
        IllegalKernelError: When the kernels wait for each other in a circle.
    """
    kernels = [Kernel(tuple(sorted(ops)), scheme, default_writes(instance, ops, scheme)) for ops, scheme in partition]
    problem = order_problem(instance, kernels)
    return arrange(instance, kernels, problem, program_order(problem), hurried=hurried)


def arrange(
    instance: Instance,
    kernels: Sequence[Kernel],
    problem: OrderProblem,
    order: Sequence[int],
    packing: Packing | None = None,
    *,
    hurried: bool = False,
) -> Solution:
    """The solution that runs ``kernels`` in ``order``, with a quick packing unless ``packing`` is given.

    ``packing`` must be one of ``arena_spans(instance, problem, order)``; ``hurried``, the packing is the quickest.
    """
    ends = lifetimes(problem, order)
    spans = _spans(instance, problem, ends)
    if packing is None and hurried:
        packing = sweep(spans)
    elif packing is None:
        cells, joined = pack_cells(arena_cells(instance, kernels, order, spans), deadline=0.0)
        packing = cells.apart(joined)
    placements = sorted(
        (Placement(span.buffer, offset) for span, offset in zip(spans, packing.offsets, strict=True)),
        key=lambda placement: placement.buffer,
    )
    return Solution(
        instance_name=instance.name,
        instance_digest=digest(instance),
        kernels=tuple(kernels[number] for number in order),
        placements=tuple(placements),
        arena_bytes=packing.arena_bytes,
        objective=sum(kernel_cost(instance, kernel.ops, kernel.scheme, kernel.writes) for kernel in kernels),
        peak_bytes=max(live_bytes(problem, order, ends)),
    )


def arena_spans(instance: Instance, problem: OrderProblem, order: Sequence[int]) -> list[Span]:
    """The buffers that live in the arena, with their lifetimes in an order: no outputs, inputs or fixed buffers."""
    return _spans(instance, problem, lifetimes(problem, order))


def _spans(instance: Instance, problem: OrderProblem, ends: Iterable[tuple[int, int]]) -> list[Span]:
    spans: list[Span] = []
    for storage, (first, last) in zip(problem.storages, ends, strict=True):
        buffer = instance.buffers[storage.buffer]
        if buffer.kind == "temporary" and not buffer.output and not buffer.fixed:
            spans.append(Span(storage.buffer, storage.bytes, first, last))
    return spans
