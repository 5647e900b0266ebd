"""Lower bounds on what reading each forward value costs a backward graph, for every choice of what is saved."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ortools.graph.python import max_flow

from optfuse.solver.saving.choice import ForwardValue

#: More than any cost in picoseconds, and few enough for sums of 64 bits.
_UNBOUNDED = 1 << 50


def least_reads(
    values: Sequence[ForwardValue], wanted: Collection[int], read_ps: Sequence[int], elements: Sequence[int]
) -> dict[int, int]:
    """By value among ``wanted``: picoseconds that may be charged to each kernel that uses it, in every choice.

    A kernel that uses v reads v, or computes it from its inputs, which it reads or computes in turn; results of library
    calls, and what must not be computed again, it can only read. So each path from v back to such a value passes one
    that the kernel reads. The charges are a flow along these paths in which no more passes a value u than reading u
    costs. A kernel that uses some of the values then reads at least the sum of their charges, for any choice of what is
    saved; and a flow that is legal for all of the values is legal for those that a kernel uses.

    Args:
        wanted: The values, by position, that loops of the backward half use whole.
        read_ps: By value, picoseconds of reading all of it, wherever it lies. Views and tuples are not read themselves.
        elements: By value, how many it has; 0 for a tuple. A path goes on to inputs of as many alone: of others a
            kernel may read a part.
    """
    flow = max_flow.SimpleMaxFlow()
    source, sink = 2 * len(values), 2 * len(values) + 1
    for k, value in enumerate(values):
        capacity = _UNBOUNDED if value.view or not elements[k] else read_ps[k]
        flow.add_arc_with_capacity(2 * k, 2 * k + 1, capacity)
        if not value.view and (value.library or value.again_ps is None):
            flow.add_arc_with_capacity(2 * k + 1, sink, _UNBOUNDED)
            continue
        for u in value.inputs:
            if elements[u] == elements[k]:
                flow.add_arc_with_capacity(2 * k + 1, 2 * u, _UNBOUNDED)
    arcs = {k: flow.add_arc_with_capacity(source, 2 * k, _UNBOUNDED) for k in sorted(wanted)}
    flow.solve(source, sink)
    return {k: flow.flow(arc) for k, arc in arcs.items()}
