"""A schedule of ours as plain data that Inductor's scheduler can be given: kernels by the names of graph nodes."""

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
    """Which kernel of ours computes what.

    Attributes
    ----------
    homes
        For each graph node that has loop ops of ours, the kernel of each op, in the ops' order (two where a reduction
        is split). Of kernels that compute an op again, it is the one that leaves its value in memory.
    written
        Nodes whose value some kernel leaves in memory, and that walk all of that kernel's index space or its outer
        part. What is smaller (a weight's cast inside of a norm, say) is no loop of Inductor's kernel, which has it
        inlined.
    sizes
        How many ops each kernel has; 0 for a library call.
    """

    homes: Mapping[str, tuple[int, ...]]
    written: frozenset[str]
    sizes: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain data, for ``wanted_from_json``."""
        homes = {node: list(kernels) for node, kernels in self.homes.items()}
        return {"homes": homes, "written": sorted(self.written), "sizes": list(self.sizes)}


def wanted_from_json(data: Mapping[str, Any]) -> Wanted:
    """What ``Wanted.as_json`` wrote."""
    homes = {node: tuple(kernels) for node, kernels in data["homes"].items()}
    return Wanted(homes, frozenset(data["written"]), tuple(data["sizes"]))


def wanted(graph: LoopGraph, instance: Instance, solution: Solution) -> Wanted:
    """A schedule's kernels by graph nodes."""
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
        if _as_large(graph.ops[op], instance.schemes[solution.kernels[number].scheme])
    )
    sizes = tuple(len(kernel.ops) if instance.ops[kernel.ops[0]].kind == "loop" else 0 for kernel in solution.kernels)
    return Wanted({node: tuple(kernels) for node, kernels in homes.items()}, written, sizes)


def _as_large(op: Op, scheme: Scheme) -> bool:
    if not isinstance(op, LoopNest):
        return False
    points = prod(size for size in op.sizes if isinstance(size, int))
    return bool(op.reductions) or points in (scheme.x, scheme.x * scheme.r)
