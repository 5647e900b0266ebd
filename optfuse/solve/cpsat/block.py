"""Solve one block: presolve, candidates, master problem; and what to do when there are too many candidates."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from optfuse.errors import IllegalKernelError
from optfuse.problem.instance import Instance
from optfuse.problem.legality import bits, mask_of
from optfuse.problem.presolve import presolve
from optfuse.solve.cpsat.atoms import Atoms, find_atoms
from optfuse.solve.cpsat.blocks import Shape
from optfuse.solve.cpsat.candidates import Candidate, Pool, enumerate_candidates
from optfuse.solve.cpsat.floor import floor_cost
from optfuse.solve.cpsat.generation import generate
from optfuse.solve.cpsat.master import Master, covers_of
from optfuse.solve.cpsat.neighbourhood import improve
from optfuse.solve.cpsat.pricing import pricer
from optfuse.solve.cpsat.search import Incumbent, search
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

    Presolve needs to know that a kernel has room for one more. So the limits on a kernel's size are lifted first, and
    only if the answer breaks them are the kernels that do left out: the bound holds either way.

    Raises:
        IllegalKernelError: When the rules leave an op without any kernel.
    """
    whole = shape.problem
    problem = presolve(_roomy(whole), shape.fed, shape.used).instance
    atoms = find_atoms(problem)
    covers, variants = covers_of(problem, atoms)
    pool = enumerate_candidates(problem, atoms, MAX_CANDIDATES, _within(deadline, 0.5))
    bound = floor_cost(whole)
    if not pool.complete:
        some = enumerate_candidates(problem, atoms, MAX_CANDIDATES, _within(deadline, 0.1), each=SOME_CANDIDATES)
        generated = generate(problem, atoms, some.candidates, covers, variants, _within(deadline, 0.5))
        pool = Pool(generated.candidates, complete=False)
        bound = max(bound, generated.bound)
    _demand_cover(problem, atoms, pool)
    start = _incumbent(whole, atoms, pool.candidates, warm)
    kept = [kernel for kernel in start.kernels or () if kernel not in pool.candidates]
    master = Master((*pool.candidates, *kept), covers, variants)
    found = search(master, atoms, start, 0, options, deadline)
    bound = max(bound, found.bound if pool.complete else 0)
    if not _fits(whole, atoms, found.incumbent):
        fitting = tuple(kernel for kernel in master.candidates if _fits(whole, atoms, Incumbent((kernel,), 0)))
        found = search(replace(master, candidates=fitting), atoms, start, bound, options, deadline)
    kernels = _partition(atoms, found.incumbent.kernels, warm)
    if not pool.complete and found.incumbent.cost > bound and not whole.variants:
        # Without presolve's ties every legal kernel can be said in atoms, the warm start's too.
        loose = find_atoms(whole)
        known = _incumbent(whole, loose, (), kernels).kernels
        if known is not None:
            kernels = _partition(loose, improve(whole, loose, known, options, deadline), kernels)
    cost = cost_of(whole, kernels)
    return BlockResult(
        kernels, cost, min(bound, cost), len(pool.candidates), len(found.cuts), found.rounds, pool.complete
    )


def _roomy(problem: Instance) -> Instance:
    """The block without limits on a kernel's size, if one could bind at all."""
    weight = sum(op.weight for op in problem.ops)
    if len(problem.ops) <= problem.limits.max_ops and weight <= problem.limits.max_weight:
        return problem
    return replace(problem, limits=replace(problem.limits, max_ops=len(problem.ops), max_weight=weight))


def _fits(whole: Instance, atoms: Atoms, incumbent: Incumbent) -> bool:
    """Whether kernels keep the limits on their size."""
    sizes = [atoms.ops_of(kernel.mask) for kernel in incumbent.kernels or ()]
    return all(
        len(ops) == 1
        or (len(ops) <= whole.limits.max_ops and sum(whole.ops[op].weight for op in ops) <= whole.limits.max_weight)
        for ops in sizes
    )


def _within(deadline: float, share: float) -> float:
    """The moment at which a share of the time left is over."""
    now = time.monotonic()
    return now + share * max(0.0, deadline - now)


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
