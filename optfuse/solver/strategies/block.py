"""What is known of a block while it is solved, the budget it is solved in, and its cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from optfuse.problem.cost import default_writes, kernel_cost
from optfuse.problem.instance import Instance
from optfuse.problem.op_masks import mask_of
from optfuse.solver.columns.pricing import pricer
from optfuse.solver.control.clock import Clock, within
from optfuse.solver.control.options import SolveOptions

#: The most candidates of a block that are listed.
MOST_LISTED = 200_000

Partition = tuple[tuple[tuple[int, ...], int], ...]  # (ops, scheme) of each kernel


@dataclass(frozen=True, slots=True)
class BlockResult:
    """The incumbent of a block, in the block's own ids, and a lower bound on all its partitions.

    ``complete``: all candidates were listed. ``unlimited`` is the best partition without limits on a kernel's size,
    where it is known and breaks them; ``memory`` is a bound on the cost without launches.
    """

    kernels: Partition
    cost: int
    bound: int
    candidates: int = 0
    cuts: int = 0
    rounds: int = 0
    complete: bool = False
    unlimited: Partition = ()
    memory: int = 0

    @property
    def proven(self) -> bool:
        """Whether the incumbent is optimal."""
        return self.bound >= self.cost

    def updated(self, found: BlockResult) -> BlockResult:
        """The cheaper incumbent and the higher bound of two results, with the work of both."""
        best = found if found.cost < self.cost else self
        return BlockResult(
            best.kernels,
            best.cost,
            min(best.cost, max(self.bound, found.bound)),
            self.candidates + found.candidates,
            self.cuts + found.cuts,
            self.rounds + found.rounds,
            self.complete or found.complete,
            found.unlimited or self.unlimited,
            max(self.memory, found.memory),
        )

    def idle(self) -> BlockResult:
        """The same incumbent and bounds, without the work that they took: a strategy reports its own."""
        return replace(self, candidates=0, cuts=0, rounds=0, complete=False)


@dataclass(frozen=True, slots=True)
class Budget:
    """The options of a solve, the time by which it must end, and how many candidates may be listed."""

    options: SolveOptions
    clock: Clock
    deadline: float
    listed: int = MOST_LISTED

    def part(self, share: float) -> Budget:
        """A budget that ends when a share of the time left is over."""
        return replace(self, deadline=within(self.clock, self.deadline, share))

    def allows(self, seconds: float) -> bool:
        """Whether there is time for a step of so many seconds that does not look at the clock meanwhile."""
        return self.clock.now() + seconds < self.deadline

    @property
    def spent(self) -> bool:
        """Whether the time is over."""
        return self.clock.now() >= self.deadline


def cost_of(problem: Instance, kernels: Partition) -> int:
    """The cost of a partition in picoseconds, whose kernels write only what the alternatives that run read."""
    if problem.variants:
        running = {op for ops, _ in kernels for op in ops}
        return sum(
            kernel_cost(problem, ops, scheme, default_writes(problem, ops, scheme, running)) for ops, scheme in kernels
        )
    prices = pricer(problem)
    return sum(prices.price(mask_of(ops), scheme) for ops, scheme in kernels)


def lifted(ops: Sequence[int], kernels: Partition, schemes: Sequence[int]) -> Partition:
    """A block's partition in the ids of the whole instance."""
    return tuple((tuple(ops[op] for op in kernel), schemes[scheme]) for kernel, scheme in kernels)
