"""Solve a block over listed candidates: presolve, enumerate the candidate kernels, solve the master problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optfuse.errors import IllegalKernelError
from optfuse.problem.instance import Instance
from optfuse.problem.op_masks import bits, mask_of
from optfuse.problem.presolve import presolve
from optfuse.solver.columns.atoms import Atoms, find_atoms
from optfuse.solver.columns.candidates import Candidate, Pool, enumerate_candidates
from optfuse.solver.columns.pricing import pricer
from optfuse.solver.master.master import Cover, Master, covers_of
from optfuse.solver.master.search import Incumbent, search
from optfuse.solver.reduce.blocks import Shape
from optfuse.solver.strategies.block import BlockResult, Budget, Partition, cost_of

#: Rough seconds of presolve for each op, and of the warm start for each op.
PRESOLVE_SECONDS = 3e-4
START_SECONDS = 1e-4
#: The shares of a strategy's time for presolve, and for a complete list.
PRESOLVE_SHARE = 0.6
LISTING_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Presolved:
    """A block before and after presolve, what that may have cost, its atoms, and the covers of the master problem."""

    whole: Instance
    reduced: Instance
    loss: int
    atoms: Atoms
    covers: tuple[tuple[Cover, ...], tuple[tuple[int, ...], ...]]


def presolved(shape: Shape, problem: Instance, budget: Budget, slack: int = 0) -> Presolved | None:
    """The presolved form of ``problem``, a shape's block or one with other limits or launches; None without time."""
    count = len(problem.ops)
    if not budget.allows(PRESOLVE_SECONDS * count):
        return None
    budget.clock.spend(PRESOLVE_SECONDS * count)
    until = budget.part(PRESOLVE_SHARE).deadline
    found = presolve(problem, shape.fed, shape.used, until, budget.clock.now, slack)
    if not budget.allows(START_SECONDS * count):
        return None
    atoms = find_atoms(found.problem)
    return Presolved(problem, found.problem, found.loss, atoms, covers_of(found.problem, atoms))


def best_of_all(block: Presolved, known: BlockResult, most: int, budget: Budget) -> BlockResult | None:
    """The best choice among all candidates; None where there are more than ``most``, or no time to list them.

    Raises:
        IllegalKernelError: When the rules leave an op without any kernel.
    """
    if not budget.allows(START_SECONDS * len(block.whole.ops)):
        return None
    until = budget.part(LISTING_SHARE).deadline
    pool = enumerate_candidates(block.reduced, block.atoms, most, until, clock=budget.clock)
    if not pool.complete:
        return None
    _demand_cover(block.reduced, block.atoms, pool)
    return best_in_pool(block, pool, known, budget)


def best_in_pool(block: Presolved, pool: Pool, known: BlockResult, budget: Budget) -> BlockResult:
    """The best choice among the candidates of a pool and those of the incumbent."""
    start = incumbent_of(block.whole, block.atoms, pool.candidates, known.kernels)
    masks = {candidate.mask for candidate in pool.candidates}
    candidates = (*pool.candidates, *(kernel for kernel in start.kernels or () if kernel.mask not in masks))
    master = Master(candidates, *block.covers)
    # the incumbent's kernels may be of schemes that presolve has dropped: those are split in the whole block
    found = search(block.whole, master, block.atoms, start, known.bound, budget.options, budget.deadline, budget.clock)
    kernels = _partition(block.atoms, found.incumbent.kernels, known.kernels)
    cost = cost_of(block.whole, kernels)
    bound = max(known.bound, found.bound - block.loss) if pool.complete else known.bound
    complete = pool.complete and not block.loss
    return BlockResult(kernels, cost, min(bound, cost), len(candidates), len(found.cuts), found.rounds, complete)


def _demand_cover(problem: Instance, atoms: Atoms, pool: Pool) -> None:
    covered = 0
    for candidate in pool.candidates:
        covered |= candidate.mask
    missing = [op for atom in bits((1 << len(atoms.ops)) - 1 & ~covered) for op in atoms.ops[atom]]
    if missing and not problem.variants:
        raise IllegalKernelError(f"no legal kernel holds op {missing[0]}; drop the rules that name it")


def incumbent_of(whole: Instance, atoms: Atoms, candidates: Sequence[Candidate], warm: Partition) -> Incumbent:
    """The warm start as candidates, each in its cheapest known scheme; without kernels where it splits an atom."""
    by_mask = {candidate.mask: candidate for candidate in candidates}
    prices = pricer(whole)
    kernels: list[Candidate] = []
    for ops, scheme in warm:
        mask = atoms.mask(ops)
        if len(atoms.ops_of(mask)) != len(ops):
            return Incumbent(None, cost_of(whole, warm))
        priced = Candidate(mask, scheme, prices.price(mask_of(ops), scheme))
        known = by_mask.get(mask, priced)
        kernels.append(known if known.cost <= priced.cost else priced)
    return Incumbent(tuple(kernels), sum(kernel.cost for kernel in kernels))


def _partition(atoms: Atoms, kernels: Sequence[Candidate] | None, otherwise: Partition) -> Partition:
    """Candidates as a partition; ``otherwise`` if there are none."""
    if kernels is None:
        return otherwise
    return tuple((atoms.ops_of(kernel.mask), kernel.scheme) for kernel in kernels)
