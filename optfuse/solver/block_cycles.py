"""Cycles of kernels across blocks, each solved on its own: found, joined into one block, or kept out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from optfuse.problem.instance import Instance
from optfuse.solver.master.cycles import find_cycles
from optfuse.solver.reduce.union_find import Components
from optfuse.solver.strategies.block import Partition


@dataclass(frozen=True, slots=True)
class Answer:
    """A block's partition in the whole instance's ids, its cost and a bound. ``complete``: all candidates known."""

    kernels: Partition
    cost: int
    bound: int
    complete: bool


def cycles_across(instance: Instance, answers: Sequence[Answer]) -> list[set[int]]:
    """Sets of blocks (by number) whose kernels form a cycle."""
    block_of: list[int] = []
    owner: dict[int, int] = {}
    for number, answer in enumerate(answers):
        for ops, _ in answer.kernels:
            owner.update(dict.fromkeys(ops, len(block_of)))
            block_of.append(number)
    graph: dict[int, set[int]] = {kernel: set() for kernel in range(len(block_of))}
    for edge in instance.edges:
        source, target = owner.get(edge.src), owner.get(edge.dst)
        if source is not None and target is not None and source != target:
            graph[source].add(target)
    return [{block_of[kernel] for kernel in cycle} for cycle in find_cycles(graph)]


def joined_blocks(
    instance: Instance, groups: Sequence[tuple[int, ...]], answers: Sequence[Answer], cycles: Iterable[set[int]]
) -> tuple[list[tuple[int, ...]], dict[int, int]]:
    """The groups with blocks on a common cycle joined, and the sum of their bounds as a bound on each."""
    components = Components(len(instance.ops))
    for group in groups:
        components.join(group)
    for cycle in cycles:
        components.join(groups[number][0] for number in cycle)
    floors: dict[int, int] = {}
    for group, answer in zip(groups, answers, strict=True):
        first = components.find(group[0])
        floors[first] = floors.get(first, 0) + answer.bound
    return components.groups(), floors


def without_cycles(instance: Instance, answers: Sequence[Answer], better: Sequence[Answer]) -> list[Answer]:
    """The better answers, but the old ones of blocks where a better one closes a cycle; those that gain most first."""
    if not cycles_across(instance, better):
        return list(better)
    kept = [
        replace(old, bound=min(old.cost, max(old.bound, new.bound))) for old, new in zip(answers, better, strict=True)
    ]
    gains = {number: old.cost - new.cost for number, (old, new) in enumerate(zip(answers, better, strict=True))}
    for number in sorted((number for number, gain in gains.items() if gain > 0), key=lambda number: -gains[number]):
        before = kept[number]
        kept[number] = better[number]
        if cycles_across(instance, kept):
            kept[number] = before
    return kept
