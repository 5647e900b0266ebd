"""Solve a block with variants by enumeration: each combination of alternatives is a block of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

from optfuse.errors import IllegalKernelError, RuleConflictError
from optfuse.problem.instance import ALONE, Instance
from optfuse.problem.legality import bits, mask_of
from optfuse.solver.baseline.greedy import greedy
from optfuse.solver.bounds.block_bound import block_bound
from optfuse.solver.control.clock import Clock
from optfuse.solver.reduce.blocks import Shape
from optfuse.solver.reduce.optional import optional_uses
from optfuse.solver.strategies.block import BlockResult, Partition, cost_of
from optfuse.solver.strategies.variant_choice import Decided, decide

#: Combinations of alternatives of one block that are solved one by one, at most.
MOST_CHOICES = 64

#: Solves a block without variants from a start by a deadline.
Solve = Callable[[Shape, Partition, float], BlockResult]


def choice_count(instance: Instance, group: Sequence[int]) -> int:
    """The number of combinations of alternatives of the variants that some ops belong to."""
    inside = set(group)
    return math.prod(
        len(variant.alternatives)
        for variant in instance.variants
        if any(op in inside for alternative in variant.alternatives for op in alternative)
    )


def few_choices(problem: Instance) -> bool:
    """Whether a block's combinations of alternatives are solved one by one: each as a block without variants.

    Where what a kernel writes depends on the choice there is no other way. A variant of which one alternative runs
    alone decides little else, so that each combination is easier than all as one model.
    """
    if optional_uses(problem):
        return True
    return (
        bool(problem.variants)
        and choice_count(problem, range(len(problem.ops))) <= MOST_CHOICES
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
    choices = list(product(*(range(len(variant.alternatives)) for variant in problem.variants)))
    for number, chosen in enumerate(choices):
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
        until = now + (deadline - now) / (len(choices) - number)
        found = solve(_decided_shape(shape, decided), start, until)
        bound = min(bound, found.bound)
        best = _merged(best, found, decided)
    return replace(best, bound=min(bound, best.cost))


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
