"""Exhaustive search: the optimum of a small instance, over all alternatives, partitions and schemes.

It is the oracle that ``cpsat`` is tested against, and shares no model with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from optfuse.errors import IllegalKernelError, InfeasibleError, InvalidOptionError
from optfuse.problem.cost import default_writes, kernel_cost
from optfuse.problem.instance import Instance
from optfuse.problem.legality import LegalIndex, common_schemes, is_legal, legal_index
from optfuse.problem.op_masks import bits
from optfuse.problem.reach import Reach
from optfuse.problem.solution import Solution
from optfuse.solver.baseline.exhaustive_covers import CoverSearch, subsets
from optfuse.solver.memory.assemble import arrange, assemble
from optfuse.solver.memory.order_problem import order_problem
from optfuse.solver.memory.order_search import least_peak_order

MAX_OPS = 14


@dataclass(frozen=True, slots=True)
class Best:
    """A legal kernel in its cheapest scheme, or, under a memory cap, in any scheme."""

    mask: int
    scheme: int
    cost: int


@dataclass(frozen=True, slots=True)
class ExhaustiveOutcome:
    """``solution`` is None when nothing was found in time. ``complete``: all partitions were tried."""

    solution: Solution | None
    kernels: int
    complete: bool


def exhaustive(instance: Instance, deadline: float | None = None, *, recompute: bool = False) -> ExhaustiveOutcome:
    """The cheapest solution of an instance of at most ``MAX_OPS`` ops, within the memory cap if there is one.

    With ``recompute``, ops that may be recomputed may be in several kernels.

    Raises:
        InvalidOptionError: When the instance is larger.
        InfeasibleError: When the rules, or the memory cap, leave no solution.
    """
    if len(instance.ops) > MAX_OPS:
        raise InvalidOptionError(
            f"instance {instance.name!r} has {len(instance.ops)} ops; solver 'exhaustive' takes at most {MAX_OPS}, "
            "use 'cpsat'"
        )
    search = CoverSearch(instance, deadline) if recompute else _Search(instance, deadline)
    for active in choices(legal_index(instance)):
        search.partitions_of(active)
    if search.best is None and not search.late:
        raise InfeasibleError(
            f"instance {instance.name!r}: no partition obeys its rules and memory cap; drop a rule or raise the cap"
        )
    return ExhaustiveOutcome(search.best, search.kernels, not search.late)


def choices(index: LegalIndex) -> Iterator[int]:
    """The sets of ops that may run: one alternative of each variant."""
    for chosen in product(*index.alternatives):
        active = index.mandatory
        for alternative in chosen:
            active |= alternative
        yield active


class _Search:
    """Branch on the kernel that holds the first op not yet covered; cut branches that cost too much already."""

    def __init__(self, instance: Instance, deadline: float | None) -> None:
        self.instance = instance
        self.deadline = deadline
        self.late = False
        self.best: Solution | None = None
        self.kernels = 0

    def partitions_of(self, active: int) -> None:
        """Try every partition of the active ops."""
        reach = Reach.of(self.instance, active)
        running = set(bits(active))
        convex = filter(reach.is_convex, subsets(active))
        legal = [kernel for mask in convex for kernel in self.in_schemes(mask, running)]
        self.kernels += len(legal)
        by_first: dict[int, list[Best]] = {}
        for kernel in sorted(legal, key=lambda kernel: kernel.cost):
            by_first.setdefault(kernel.mask & -kernel.mask, []).append(kernel)
        self.extend(active, by_first, [], 0)

    def in_schemes(self, mask: int, running: set[int]) -> list[Best]:
        """The kernel in its cheapest legal scheme; under a memory cap in all: a costlier one may use less memory."""
        ops = tuple(bits(mask))
        options: list[Best] = []
        for scheme in common_schemes(self.instance, ops):
            if is_legal(self.instance, ops, scheme):
                writes = default_writes(self.instance, ops, scheme, running)
                options.append(Best(mask, scheme, kernel_cost(self.instance, ops, scheme, writes)))
        if self.instance.rules.peak_memory is not None:
            return options
        return sorted(options, key=lambda option: option.cost)[:1]

    def extend(self, left: int, by_first: dict[int, list[Best]], chosen: list[Best], cost: int) -> None:
        """Cover the remaining ops in every way that may still be optimal."""
        self.late = self.late or (self.deadline is not None and time.monotonic() > self.deadline)
        if self.late:
            return
        if not left:
            self.offer(chosen)
            return
        for kernel in by_first.get(left & -left, ()):
            if self.best is not None and cost + kernel.cost >= self.best.objective:
                break
            if not kernel.mask & ~left:
                self.extend(left & ~kernel.mask, by_first, [*chosen, kernel], cost + kernel.cost)

    def offer(self, chosen: list[Best]) -> None:
        """Keep a partition that is acyclic and within the memory cap; it is cheaper than the best so far."""
        try:
            solution = assemble(self.instance, [(tuple(bits(kernel.mask)), kernel.scheme) for kernel in chosen])
        except IllegalKernelError:
            return
        cap = self.instance.rules.peak_memory
        if cap is not None and solution.peak_bytes > cap:
            problem = order_problem(self.instance, solution.kernels)
            found = least_peak_order(problem, range(len(solution.kernels)))
            solution = arrange(self.instance, solution.kernels, problem, found.order)
            if solution.peak_bytes > cap:
                return
        self.best = solution
