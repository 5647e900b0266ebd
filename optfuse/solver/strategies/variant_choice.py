"""Choose an alternative for each variant, by local search over classes of equal variants.

``decide`` gives the instance without variants in which the chosen alternatives run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from optfuse.errors import IllegalKernelError, RuleConflictError
from optfuse.problem.cost import kernel_cost
from optfuse.problem.instance import Edge, Instance, Op, Rules
from optfuse.problem.legality import listed
from optfuse.problem.solution import Kernel
from optfuse.solver.baseline.greedy import greedy
from optfuse.solver.control.clock import WALL, Clock

#: The cost of a choice that the rules forbid: above that of every schedule.
NEVER_CHOSEN = 1 << 62


@dataclass(frozen=True, slots=True)
class Decided:
    """``instance`` has no variants; its op ``i`` is op ``ops[i]`` of the one that it came from."""

    instance: Instance
    ops: tuple[int, ...]

    def lifted(self, kernel: Kernel) -> tuple[int, ...]:
        """A kernel's ops in ids of the whole instance."""
        return tuple(self.ops[op] for op in kernel.ops)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The best decisions found, by variant, and the kernels for them in ids of the whole instance."""

    alternatives: tuple[int, ...]
    kernels: tuple[tuple[tuple[int, ...], int], ...]
    cost: int
    solves: int


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


def cheapest_unfused(instance: Instance) -> tuple[int, ...]:
    """By variant, the alternative whose ops cost least when each is a kernel of its own."""

    def alone(op: int) -> int:
        return min(kernel_cost(instance, (op,), offer.scheme) for offer in instance.ops[op].offers)

    return tuple(
        min(range(len(variant.alternatives)), key=lambda k, v=variant: (sum(map(alone, v.alternatives[k])), k))
        for variant in instance.variants
    )


def classes(instance: Instance) -> list[list[int]]:
    """Classes of variants whose ops compute, read and write the same: repeated layers are decided together."""
    found: dict[object, list[int]] = {}
    for number, variant in enumerate(instance.variants):
        key = tuple(tuple(_key(instance.ops[op]) for op in alternative) for alternative in variant.alternatives)
        found.setdefault(key, []).append(number)
    return list(found.values())


def _key(op: Op) -> object:
    """An op without its place: its arithmetic, and the sizes of its reads and writes."""
    sizes = {
        (tuple(sorted(read.bytes for read in offer.reads)), tuple(sorted(write.bytes for write in offer.writes)))
        for offer in op.offers
    }
    return op.work, tuple(sorted(sizes))


def choose_greedily(instance: Instance, deadline: float = math.inf, clock: Clock = WALL) -> Chosen:
    """The alternatives for which greedy fusion costs least, by ``descend``.

    Starts from the best of: the first alternatives, the last ones, and those that are cheapest unfused.
    """

    def greedily(alternatives: tuple[int, ...]) -> Chosen:
        try:
            decided = decide(instance, alternatives)
            solution = greedy(decided.instance)
        except IllegalKernelError:  # the rules leave no kernels for this choice
            return Chosen(alternatives, (), NEVER_CHOSEN, 1)
        kernels = tuple((decided.lifted(kernel), kernel.scheme) for kernel in solution.kernels)
        return Chosen(alternatives, kernels, solution.objective, 1)

    last = tuple(len(variant.alternatives) - 1 for variant in instance.variants)
    starts = dict.fromkeys((cheapest_unfused(instance), (0,) * len(last), last))
    best = min(map(greedily, starts), key=lambda chosen: chosen.cost)
    return descend(instance, replace(best, solves=len(starts)), greedily, deadline, clock)


def descend(
    instance: Instance,
    best: Chosen,
    attempt: Callable[[tuple[int, ...]], Chosen],
    deadline: float,
    clock: Clock,
) -> Chosen:
    """The choice when no class, large ones first, improves by another of its alternatives, or at the deadline."""
    groups, solves = sorted(classes(instance), key=len, reverse=True), best.solves
    moved = True
    while moved and clock.now() < deadline:
        moved = False
        for group in groups:
            for alternative in range(len(instance.variants[group[0]].alternatives)):
                if clock.now() >= deadline or alternative == best.alternatives[group[0]]:
                    continue
                decided = list(best.alternatives)
                for variant in group:
                    decided[variant] = alternative
                found = attempt(tuple(decided))
                solves += 1
                if found.cost < best.cost:
                    best, moved = found, True
    return replace(best, solves=solves)
