"""Solve a block with variants by enumeration: each combination of alternatives is a block of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from optfuse.errors import IllegalKernelError, RuleConflictError
from optfuse.problem.instance import ALONE, Edge, Instance, Rules
from optfuse.problem.legality import listed
from optfuse.problem.op_masks import bits, mask_of
from optfuse.solver.baseline.greedy import greedy
from optfuse.solver.bounds.block_bound import block_bound
from optfuse.solver.control.clock import Clock
from optfuse.solver.reduce.blocks import Shape
from optfuse.solver.reduce.optional_values import optional_uses
from optfuse.solver.strategies.block import BlockResult, Partition, cost_of

#: Combinations of alternatives of one block that are solved one by one, at most.
MOST_CHOICES = 64

#: Solves a block without variants from a start by a deadline.
Solve = Callable[[Shape, Partition, float], BlockResult]


@dataclass(frozen=True, slots=True)
class Decided:
    """``instance`` has no variants; its op ``i`` is op ``ops[i]`` of the one that it came from."""

    instance: Instance
    ops: tuple[int, ...]


def choices(problem: Instance) -> int:
    """In how many ways a block's alternatives can be combined."""
    return math.prod(len(variant.alternatives) for variant in problem.variants)


def few_choices(problem: Instance) -> bool:
    """Whether a block's combinations of alternatives are solved one by one: each as a block without variants.

    Where what a kernel writes depends on the choice there is no other way. A variant of which one alternative runs
    alone decides little else, so that each combination is easier than all as one model.
    """
    if optional_uses(problem):
        return True
    return (
        bool(problem.variants)
        and choices(problem) <= MOST_CHOICES
        and all(
            any(offer.scheme == ALONE for op in variant.alternatives[0] for offer in problem.ops[op].offers)
            for variant in problem.variants
        )
    )


def solve_choices(shape: Shape, warm: Partition, solve: Solve, deadline: float, clock: Clock) -> BlockResult:
    """The cheapest partition over all combinations of alternatives; the bound is the least of theirs.

    A combination that the rules forbid is left out; one that there was no time for counts with ``block_bound``.
    """
    problem = shape.problem
    cost = cost_of(problem, warm)
    best = BlockResult(warm, cost, cost, complete=True)
    bound = cost
    combinations = list(product(*(range(len(variant.alternatives)) for variant in problem.variants)))
    for number, chosen in enumerate(combinations):
        now = clock.now()
        if now >= deadline:
            bound = min(bound, block_bound(problem))
            best = replace(best, complete=False)
            break
        try:
            decided = decide(problem, chosen)
            start = tuple((kernel.ops, kernel.scheme) for kernel in greedy(decided.instance).kernels)
        except RuleConflictError:
            continue
        except IllegalKernelError:  # whether the rules can be kept was not decided in time
            bound, best = min(bound, block_bound(problem)), replace(best, complete=False)
            continue
        until = now + (deadline - now) / (len(combinations) - number)
        found = solve(_decided_shape(shape, decided), start, until)
        bound = min(bound, found.bound)
        best = _merged(best, found, decided)
    return replace(best, bound=min(bound, best.cost))


def decide(instance: Instance, chosen: Sequence[int]) -> Decided:
    """The instance in which alternative ``chosen[v]`` of each variant ``v`` runs.

    Raises:
        RuleConflictError: When a rule asks for one kernel of ops that do not all run then.
    """
    out = {op for variant in instance.variants for alternative in variant.alternatives for op in alternative}
    out -= {op for variant, k in zip(instance.variants, chosen, strict=True) for op in variant.alternatives[k]}
    ops = tuple(op for op in range(len(instance.ops)) if op not in out)
    number = {op: k for k, op in enumerate(ops)}
    edges = tuple(
        Edge(number[edge.src], number[edge.dst], edge.buffer, edge.schemes)
        for edge in instance.edges
        if edge.src in number and edge.dst in number
    )

    for group in (*instance.rules.fuse, *instance.rules.single_kernel):
        if len({op in number for op in group}) > 1:
            raise RuleConflictError(f"the rules ask for one kernel of {listed(instance, group)}, not all of which run")

    def groups(family: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(number[op] for op in ops) for ops in family if all(op in number for op in ops))

    rules = instance.rules
    kept = Rules(
        fuse=tuple((a, b) for a, b in groups(rules.fuse)),
        no_fuse=tuple((a, b) for a, b in groups(rules.no_fuse)),
        single_kernel=groups(rules.single_kernel),
        barrier=tuple(number[op] for op in rules.barrier if op in number),
        peak_memory=rules.peak_memory,
    )
    made, ever = (
        {write.buffer for op in every for offer in instance.ops[op].offers for write in offer.writes}
        for every in (ops, range(len(instance.ops)))
    )
    # A temporary whose producers do not run keeps its number, with no bytes; one that is made outside is as it was.
    buffers = tuple(
        replace(buffer, kind="constant", bytes=0) if place in ever - made and buffer.kind == "temporary" else buffer
        for place, buffer in enumerate(instance.buffers)
    )
    decided = replace(
        instance, buffers=buffers, ops=tuple(instance.ops[op] for op in ops), edges=edges, variants=(), rules=kept
    )
    return Decided(decided, ops)


def _decided_shape(shape: Shape, decided: Decided) -> Shape:
    place = {op: number for number, op in enumerate(decided.ops)}

    def kept(mask: int) -> int:
        return mask_of(place[op] for op in bits(mask) if op in place)

    return Shape(decided.instance, kept(shape.fed), kept(shape.used))


def _merged(best: BlockResult, found: BlockResult, decided: Decided) -> BlockResult:
    """The cheaper of two results, ``found`` being in the ids of a decided block, with the work of both."""
    counted = replace(
        best,
        candidates=best.candidates + found.candidates,
        cuts=best.cuts + found.cuts,
        rounds=best.rounds + found.rounds,
        complete=best.complete and found.complete,
    )
    if found.cost >= best.cost:
        return counted
    kernels = tuple((tuple(decided.ops[op] for op in ops), scheme) for ops, scheme in found.kernels)
    return replace(counted, kernels=kernels, cost=found.cost)
