"""Solve one block: presolve, candidates, master problem; and what to do when there are too many candidates."""

from __future__ import annotations

import time
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
from optfuse.solve.cpsat.neighbourhood import improve
from optfuse.solve.cpsat.pricing import pricer
from optfuse.solve.cpsat.rooted import rooted_bound
from optfuse.solve.cpsat.search import Found, Incumbent, search
from optfuse.solve.options import SolveOptions

#: Candidates of one block; beyond that the block is solved over some of them.
MAX_CANDIDATES = 600_000
#: In that case, candidates of a scheme that start at the same atom.
SOME_CANDIDATES = 200

Partition = tuple[tuple[tuple[int, ...], int], ...]  # (ops, scheme) of each kernel


@dataclass(frozen=True, slots=True)
class BlockResult:
    """The best partition of a block, in the block's own ids, and a lower bound on all of them.

    ``complete``: all candidates were known.
    """

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
    problem = presolve(shape.problem, shape.fed, shape.used).instance
    atoms = find_atoms(problem)
    pool = enumerate_candidates(problem, atoms, MAX_CANDIDATES, _within(deadline, 0.6))
    _demand_cover(problem, atoms, pool)
    if not pool.complete:
        return _solve_partly(shape.problem, problem, atoms, warm, options, deadline)
    covers, variants = covers_of(problem, atoms)
    start = _incumbent(shape.problem, atoms, pool.candidates, warm)
    found = search(Master(pool.candidates, covers, variants), atoms, start, 0, options, deadline)
    kernels = _partition(atoms, found.incumbent.kernels, warm)
    bound = max(found.bound, min(floor_cost(shape.problem), found.incumbent.cost))
    return _result(shape.problem, kernels, bound, pool, found)


def _solve_partly(
    whole: Instance, problem: Instance, atoms: Atoms, warm: Partition, options: SolveOptions, deadline: float
) -> BlockResult:
    """Some candidates and the warm start's, then window by window; the bound comes from elsewhere."""
    pool = enumerate_candidates(problem, atoms, MAX_CANDIDATES, _within(deadline, 0.2), each=SOME_CANDIDATES)
    covers, variants = covers_of(problem, atoms)
    start = _incumbent(whole, atoms, pool.candidates, warm)
    known = {candidate.mask for candidate in pool.candidates}
    extra = tuple(kernel for kernel in start.kernels or () if kernel.mask not in known)
    master = Master((*pool.candidates, *extra), covers, variants)
    found = search(master, atoms, start, 0, options, _within(deadline, 0.4))
    bound = floor_cost(whole)
    if found.prices:
        prices = [0] * len(atoms.ops)
        for cover, price in zip(covers, found.prices, strict=True):
            prices[cover.atom] += price if cover.alternatives is None else 0
        bound = max(bound, rooted_bound(problem, atoms, prices, _within(deadline, 0.6)))
    kernels = _partition(atoms, found.incumbent.kernels, warm)
    if not problem.variants:
        # Without presolve's ties every legal kernel can be said in atoms, the warm start's too.
        loose = find_atoms(whole)
        known_kernels = _incumbent(whole, loose, (), kernels).kernels
        if known_kernels is not None:
            kernels = _partition(loose, improve(whole, loose, known_kernels, options, deadline), kernels)
    return _result(whole, kernels, bound, pool, found)


def _within(deadline: float, share: float) -> float:
    """The moment at which a share of the time left is over."""
    now = time.monotonic()
    return now + share * max(0.0, deadline - now)


def _result(whole: Instance, kernels: Partition, bound: int, pool: Pool, found: Found) -> BlockResult:
    cost = cost_of(whole, kernels)
    return BlockResult(
        kernels, cost, min(bound, cost), len(pool.candidates), len(found.cuts), found.rounds, pool.complete
    )


def _demand_cover(problem: Instance, atoms: Atoms, pool: Pool) -> None:
    covered = 0
    for candidate in pool.candidates:
        covered |= candidate.mask
    missing = [op for atom in bits((1 << len(atoms.ops)) - 1 & ~covered) for op in atoms.ops[atom]]
    if missing and not problem.variants and pool.complete:
        raise IllegalKernelError(f"no legal kernel holds op {missing[0]}; drop the rules that name it")


def _incumbent(whole: Instance, atoms: Atoms, candidates: Sequence[Candidate], warm: Partition) -> Incumbent:
    """The warm start as candidates, where it can be said in atoms, in the cheapest scheme known for each kernel."""
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
    """Candidates as ops and schemes."""
    if kernels is None:
        return otherwise
    return tuple((atoms.ops_of(kernel.mask), kernel.scheme) for kernel in kernels)


def lifted(ops: Sequence[int], kernels: Partition, schemes: Sequence[int]) -> Partition:
    """A block's partition in the ids of the whole instance."""
    return tuple((tuple(ops[op] for op in kernel), schemes[scheme]) for kernel, scheme in kernels)
