"""Offer the solver each long reduction both whole and split: a variant of two alternatives, of which one runs.

- *whole*: one nest; with few results its kernel cannot fill the device.
- *split*: a nest of partial results over chunks, and one that combines them (``split_reductions``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from optfuse.compiler.ir.nodes import LoopGraph, Op
from optfuse.compiler.simplify.split_reductions import splits
from optfuse.problem.instance import Device

#: The percentage of a launch that a whole reduction must lose to idle programs for the split one to be offered.
SPLIT_PERCENT = 25


@dataclass(frozen=True, slots=True)
class Alternatives:
    """A graph with the ops of all alternatives, and its variants.

    ``variants`` are tuples (name, alternatives as op positions), the whole reduction first.
    """

    graph: LoopGraph
    variants: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...]

    def rivals(self) -> dict[int, frozenset[int]]:
        """By op of a variant: the ops of its other alternatives."""
        found: dict[int, frozenset[int]] = {}
        for _, alternatives in self.variants:
            every = {op for ops in alternatives for op in ops}
            for ops in alternatives:
                found |= dict.fromkeys(ops, frozenset(every - set(ops)))
        return found


def reduction_variants(graph: LoopGraph, device: Device) -> Alternatives:
    """The graph with each long reduction both whole and split (``graph`` has no split ones)."""
    ops: list[Op] = []
    buffers = list(graph.buffers)
    variants: list[tuple[str, tuple[tuple[int, ...], ...]]] = []
    for op, stages in splits(graph, device, SPLIT_PERCENT):
        whole = len(ops)
        ops.append(op)
        if stages is not None:
            first, second, partials = stages
            ops += [first, replace(second, name=f"{op.name}_combine")]
            buffers += partials
            variants.append((op.name, ((whole,), (whole + 1, whole + 2))))
    return Alternatives(replace(graph, ops=tuple(ops), buffers=tuple(buffers)), tuple(variants))
