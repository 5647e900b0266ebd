"""Exhaustive search with recomputation: every set of kernels in which each loaded buffer is written, checked.

Shares neither the columns nor the model of ``cpsat``: kernels are all legal sets with all choices of their writes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from optfuse.errors import IllegalKernelError
from optfuse.problem.checker import check
from optfuse.problem.cost import kernel_cost, topology
from optfuse.problem.instance import Instance
from optfuse.problem.legality import common_schemes, is_legal_but_for_paths
from optfuse.problem.op_masks import bits
from optfuse.problem.recompute import recomputable_ops
from optfuse.problem.solution import Kernel, Solution
from optfuse.solver.memory.assemble import arrange
from optfuse.solver.memory.order_problem import order_problem, program_order
from optfuse.solver.memory.order_search import least_peak_order


@dataclass(frozen=True, slots=True)
class _Choice:
    """A kernel that may be chosen, with the temporaries that it loads from memory."""

    mask: int
    kernel: Kernel
    loads: frozenset[int]
    cost: int


class CoverSearch:
    """Branch on what is missing: an op that must run once, then a buffer that is loaded and not written."""

    def __init__(self, instance: Instance, deadline: float | None) -> None:
        """``deadline``: when to stop (``time.monotonic``)."""
        self.instance = instance
        self.deadline = deadline
        self.recomputable = recomputable_ops(instance)
        self.late = False
        self.best: Solution | None = None
        self.kernels = 0

    def partitions_of(self, active: int) -> None:
        """Try every cover of the active ops."""
        choices = sorted((c for mask in subsets(active) for c in self._choices(mask, active)), key=lambda c: c.cost)
        self.kernels += len(choices)
        self._extend(active, choices, [], 0)

    def _choices(self, mask: int, active: int) -> Iterator[_Choice]:
        index = topology(self.instance)
        ops = tuple(bits(mask))
        temporary = {number for number, buffer in enumerate(self.instance.buffers) if buffer.kind == "temporary"}
        for scheme in common_schemes(self.instance, ops):
            if not is_legal_but_for_paths(self.instance, ops, scheme):
                continue
            made = sorted({write[0] for op in ops for write in index.priced[op][scheme].writes})
            loads: set[int] = set()
            for op in ops:
                sources = [(s, b) for s, b in index.sources[op] if active >> s & 1]
                wanted = {read.buffer for read in index.offers[op][scheme].reads} | {
                    b for _, b in sources if b is not None
                }
                loads |= wanted - {b for s, b in sources if mask >> s & 1}
            for chosen in range(1 << len(made)):
                writes = tuple(buffer for k, buffer in enumerate(made) if chosen >> k & 1)
                cost = kernel_cost(self.instance, ops, scheme, writes)
                yield _Choice(mask, Kernel(ops, scheme, writes), frozenset(loads & temporary), cost)

    def _extend(self, active: int, choices: list[_Choice], taken: list[_Choice], cost: int) -> None:
        self.late = self.late or (self.deadline is not None and time.monotonic() > self.deadline)
        if self.late:
            return
        covered = 0
        for choice in taken:
            covered |= choice.mask
        written = {buffer for choice in taken for buffer in choice.kernel.writes}
        missing = active & ~self.recomputable & ~covered
        wanted = set[int]().union(*(choice.loads for choice in taken)) - written
        if not missing and not wanted:
            wanted = self._required_writes(active) - written
        if not missing and not wanted:
            self._offer(taken)
            return
        for choice in choices:
            if self.best is not None and cost + choice.cost >= self.best.objective:
                break
            helps = choice.mask & missing & -missing if missing else min(wanted) in choice.kernel.writes
            if helps and not choice.mask & covered & ~self.recomputable:
                self._extend(active, choices, [*taken, choice], cost + choice.cost)

    def _required_writes(self, active: int) -> set[int]:
        index = topology(self.instance)
        return {
            write[0] for op in bits(active) for offer in index.priced[op].values() for write in offer.writes if write[3]
        }

    def _offer(self, taken: list[_Choice]) -> None:
        """Keep a cover that the checker accepts, in the order of least peak; it is cheaper than the best so far."""
        kernels = [choice.kernel for choice in taken]
        problem = order_problem(self.instance, kernels)
        try:
            start = program_order(problem)
        except IllegalKernelError:
            return
        solution = arrange(self.instance, kernels, problem, least_peak_order(problem, start).order)
        if not check(self.instance, solution):
            self.best = replace(solution, objective=sum(choice.cost for choice in taken))


def subsets(mask: int) -> Iterator[int]:
    """The nonempty subsets of a mask."""
    subset = mask
    while subset:
        yield subset
        subset = (subset - 1) & mask
