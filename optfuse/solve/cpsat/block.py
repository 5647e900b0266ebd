"""Solve one block: candidates, master problem, and what to do when there are too many candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optfuse.errors import IllegalKernelError
from optfuse.problem.instance import Instance
from optfuse.problem.legality import bits, mask_of
from optfuse.problem.presolve import presolve
from optfuse.solve.cpsat.atoms import Atoms, find_atoms
from optfuse.solve.cpsat.blocks import Shape
from optfuse.solve.cpsat.candidates import Candidate, Pool, enumerate_candidates
from optfuse.solve.cpsat.floor import floor_cost
from optfuse.solve.cpsat.master import Master, covers_of
from optfuse.solve.cpsat.pricing import pricer
from optfuse.solve.cpsat.search import Incumbent, search
from optfuse.solve.options import SolveOptions

#: Candidates of one block; beyond that the block is solved over some of them.
MAX_CANDIDATES = 600_000

Partition = tuple[tuple[tuple[int, ...], int], ...]  # (ops, scheme) of each kernel


@dataclass(frozen=True, slots=True)
class BlockResult:
    """The best partition of a block, in the block's own ids, and a lower bound on all of them."""

    kernels: Partition
    cost: int
    bound: int
    candidates: int
    cuts: int
    rounds: int
    complete: bool


def cost_of(problem: Instance, kernels: Partition) -> int:
    """The cost of a partition in picoseconds."""
    prices = pricer(problem)
    return sum(prices.price(mask_of(ops), scheme) for ops, scheme in kernels)


def solve_block(shape: Shape, warm: Partition, options: SolveOptions, deadline: float) -> BlockResult:
    """Solve a block. ``warm`` is a legal, acyclic partition of it: the result costs no more.

    Raises:
        IllegalKernelError: When the rules leave an op without any kernel.
    """
    cost = cost_of(shape.problem, warm)
    problem = presolve(shape.problem, shape.fed, shape.used).instance
    atoms = find_atoms(problem)
    pool = enumerate_candidates(problem, atoms, MAX_CANDIDATES, deadline)
    _demand_cover(problem, atoms, pool)
    covers, variants = covers_of(problem, atoms)
    master = Master(pool.candidates, covers, variants)
    found = search(master, atoms, _incumbent(atoms, pool, warm, cost), 0, options, deadline)
    bound = found.bound if pool.complete else floor_cost(problem)
    kernels = warm if found.incumbent.kernels is None else tuple(
        (atoms.ops_of(kernel.mask), kernel.scheme) for kernel in found.incumbent.kernels
    )
    return BlockResult(
        kernels,
        found.incumbent.cost,
        min(bound, found.incumbent.cost),
        len(pool.candidates),
        len(found.cuts),
        found.rounds,
        pool.complete,
    )


def _demand_cover(problem: Instance, atoms: Atoms, pool: Pool) -> None:
    covered = 0
    for candidate in pool.candidates:
        covered |= candidate.mask
    missing = [op for atom in bits((1 << len(atoms.ops)) - 1 & ~covered) for op in atoms.ops[atom]]
    if missing and not problem.variants and pool.complete:
        raise IllegalKernelError(f"no legal kernel holds op {missing[0]}; drop the rules that name it")


def _incumbent(atoms: Atoms, pool: Pool, warm: Partition, cost: int) -> Incumbent:
    """The warm start as candidates, where it can be said in atoms."""
    by_mask = {candidate.mask: candidate for candidate in pool.candidates}
    kernels: list[Candidate] = []
    for ops, _ in warm:
        known = by_mask.get(atoms.mask(ops))
        if known is None or len(atoms.ops_of(known.mask)) != len(ops):
            return Incumbent(None, cost)
        kernels.append(known)
    return Incumbent(tuple(kernels), cost)


def lifted(ops: Sequence[int], kernels: Partition, schemes: Sequence[int]) -> Partition:
    """A block's partition in the ids of the whole instance."""
    return tuple((tuple(ops[op] for op in kernel), schemes[scheme]) for kernel, scheme in kernels)
