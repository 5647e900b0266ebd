"""A schedule of ours by graph nodes: the form in which it is imposed on Inductor's scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from optfuse.compiler.ir.nodes import LoopGraph, LoopNest, Op
from optfuse.inductor.mapping import node_of
from optfuse.problem.instance import Instance, Scheme
from optfuse.problem.solution import Solution


@dataclass(frozen=True, slots=True)
class Wanted:
    """The kernel that computes each graph node, and the nodes whose values are stored.

    Attributes:
        homes: For each graph node with loop ops, the kernel of each op, in the ops' order (two where a reduction is
            split). If several kernels recompute an op, the one that stores its value.
        written: Nodes whose value a kernel stores, and that iterate over all of that kernel's index space or its outer
            dimensions. Smaller nodes (a weight's cast in a norm, for example) are left out: Inductor inlines them.
        sizes: The number of ops of each kernel; 0 for a library call.
    """

    homes: Mapping[str, tuple[int, ...]]
    written: frozenset[str]
    sizes: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        """JSON data, which ``wanted_from_json`` reads."""
        homes = {node: list(kernels) for node, kernels in self.homes.items()}
        return {"homes": homes, "written": sorted(self.written), "sizes": list(self.sizes)}


def wanted_from_json(data: Mapping[str, Any]) -> Wanted:
    """Read the data of ``Wanted.as_json``."""
    homes = {node: tuple(kernels) for node, kernels in data["homes"].items()}
    return Wanted(homes, frozenset(data["written"]), tuple(data["sizes"]))


def wanted(graph: LoopGraph, instance: Instance, solution: Solution) -> Wanted:
    """Return a schedule's kernels by graph nodes."""
    writer: dict[int, int] = {}
    computer: dict[int, int] = {}
    for number, kernel in enumerate(solution.kernels):
        left = set(kernel.writes)
        for op in kernel.ops:
            computer.setdefault(op, number)
            if not left.isdisjoint(write.buffer for offer in instance.ops[op].offers for write in offer.writes):
                writer.setdefault(op, number)
    homes: dict[str, list[int]] = {}
    for number, op in enumerate(instance.ops):
        if op.kind == "loop":
            homes.setdefault(node_of(graph.ops[number]), []).append(writer.get(number, computer[number]))
    written = frozenset(
        node_of(graph.ops[op])
        for op, number in writer.items()
        if _spans_kernel(graph.ops[op], instance.schemes[solution.kernels[number].scheme])
    )
    sizes = tuple(len(kernel.ops) if instance.ops[kernel.ops[0]].kind == "loop" else 0 for kernel in solution.kernels)
    return Wanted({node: tuple(kernels) for node, kernels in homes.items()}, written, sizes)


def _spans_kernel(op: Op, scheme: Scheme) -> bool:
    if not isinstance(op, LoopNest):
        return False
    points = prod(size for size in op.sizes if isinstance(size, int))
    return not op.pointwise or points in (scheme.x, scheme.x * scheme.r)
