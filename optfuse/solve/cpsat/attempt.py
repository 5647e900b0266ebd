"""One way through a block: presolve, candidates, master problem; and what to do when there are too many candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from optfuse.errors import IllegalKernelError
from optfuse.problem.instance import Instance
from optfuse.problem.legality import bits, mask_of
from optfuse.problem.presolve import presolve
from optfuse.solve.clock import Clock, within
from optfuse.solve.cpsat.atoms import Atoms, find_atoms
from optfuse.solve.cpsat.blocks import Shape
from optfuse.solve.cpsat.candidates import Candidate, Pool, enumerate_candidates
from optfuse.solve.cpsat.generation import generate
from optfuse.solve.cpsat.master import Cover, Master, covers_of
from optfuse.solve.cpsat.neighbourhood import improve
from optfuse.solve.cpsat.pricing import pricer
from optfuse.solve.cpsat.search import Incumbent, search
from optfuse.solve.options import SolveOptions

#: Candidates of one block that are listed at once, and at most; beyond that it is solved over some of them.
FEW_CANDIDATES = 200_000
MAX_CANDIDATES = 600_000
#: In the first round of generation, candidates of a scheme that start at the same atom.
SOME_CANDIDATES = 200
#: What presolve takes for an op, roughly.
PRESOLVE_SECONDS = 3e-4

Partition = tuple[tuple[tuple[int, ...], int], ...]  # (ops, scheme) of each kernel


@dataclass(frozen=True, slots=True)
class BlockResult:
    """The best partition of a block, in the block's own ids, and a lower bound on all of them.

    ``complete``: all candidates were known.
    """

    kernels: Partition
    cost: int
    bound: int
    candidates: int = 0
    cuts: int = 0
    rounds: int = 0
    complete: bool = False


def cost_of(problem: Instance, kernels: Partition) -> int:
    """The cost of a partition in picoseconds."""
    prices = pricer(problem)
    return sum(prices.price(mask_of(ops), scheme) for ops, scheme in kernels)


def attempt(
    shape: Shape,
    problem: Instance,
    warm: Partition,
    bound: int,
    options: SolveOptions,
    deadline: float,
    clock: Clock,
) -> BlockResult:
    """Solve ``problem``, the block of a shape or one that differs from it in limits or launches alone.

    A few candidates are listed in any case. Where there are more, the relaxation says which are wanted; only if that
    does not settle the block are all of them listed, as far as there is room. ``bound`` is known already.

    Raises:
        IllegalKernelError: When the rules leave an op without any kernel.
    """
    task = _task(shape, problem, options, deadline, clock)
    found = _listed(task, warm, bound, FEW_CANDIDATES, deadline)
    if found is not None:
        return found
    whole = task.whole
    if not problem.variants:
        warm = _improved(whole, warm, options, within(clock, deadline, 0.25), clock)
    first = _generated(task, warm, bound, within(clock, deadline, 0.85))
    if first.cost == first.bound or clock.now() >= deadline:
        return first
    second = _listed(task, first.kernels, first.bound, MAX_CANDIDATES, deadline)
    if second is not None:
        return replace(second, cuts=first.cuts + second.cuts, rounds=first.rounds + second.rounds)
    if problem.variants:
        return first
    kernels = _improved(whole, first.kernels, options, deadline, clock)
    return replace(first, kernels=kernels, cost=cost_of(whole, kernels))


def listed(
    shape: Shape,
    problem: Instance,
    warm: Partition,
    bound: int,
    options: SolveOptions,
    deadline: float,
    clock: Clock,
    most: int,
) -> BlockResult | None:
    """The same, if there are at most so many candidates; None where there are more, or no time for them."""
    return _listed(_task(shape, problem, options, deadline, clock), warm, bound, most, deadline)


def _listed(task: _Task, warm: Partition, bound: int, most: int, deadline: float) -> BlockResult | None:
    until = within(task.clock, deadline, 0.5)
    pool = enumerate_candidates(task.reduced, task.atoms, most, until, clock=task.clock)
    if not pool.complete:
        return None
    _demand_cover(task.reduced, task.atoms, pool)
    return _chosen(task, pool, warm, bound, deadline)


@dataclass(frozen=True, slots=True)
class _Task:
    """A block as it is and presolved, and what all ways of solving it need."""

    whole: Instance
    reduced: Instance
    atoms: Atoms
    covers: tuple[tuple[Cover, ...], tuple[tuple[int, ...], ...]]
    options: SolveOptions
    clock: Clock


def _task(shape: Shape, problem: Instance, options: SolveOptions, deadline: float, clock: Clock) -> _Task:
    reduced = _presolved(shape, problem, deadline, clock)
    atoms = find_atoms(reduced)
    return _Task(shape.problem, reduced, atoms, covers_of(reduced, atoms), options, clock)


def _chosen(task: _Task, pool: Pool, warm: Partition, bound: int, deadline: float) -> BlockResult:
    """Choose among the candidates of a pool and those of the warm start."""
    start = _incumbent(task.whole, task.atoms, pool.candidates, warm)
    known = {candidate.mask for candidate in pool.candidates}
    candidates = (*pool.candidates, *(kernel for kernel in start.kernels or () if kernel.mask not in known))
    master = Master(candidates, *task.covers)
    found = search(task.reduced, master, task.atoms, start, bound, task.options, deadline, task.clock)
    kernels = _partition(task.atoms, found.incumbent.kernels, warm)
    cost = cost_of(task.whole, kernels)
    bound = found.bound if pool.complete else bound
    return BlockResult(
        kernels, cost, min(bound, cost), len(candidates), len(found.cuts), found.rounds, complete=pool.complete
    )


def _generated(task: _Task, warm: Partition, bound: int, deadline: float) -> BlockResult:
    """Start from the first candidates of every atom, add those that the relaxation wants, and choose among them."""
    until = within(task.clock, deadline, 0.1)
    pool = enumerate_candidates(task.reduced, task.atoms, MAX_CANDIDATES, until, each=SOME_CANDIDATES, clock=task.clock)
    start = _incumbent(task.whole, task.atoms, pool.candidates, warm)
    known = {candidate.mask for candidate in pool.candidates}
    candidates = (*pool.candidates, *(kernel for kernel in start.kernels or () if kernel.mask not in known))
    until = within(task.clock, deadline, 0.9)
    generated = generate(task.reduced, task.atoms, candidates, *task.covers, until, task.clock)
    return _chosen(task, Pool(generated.candidates, complete=False), warm, max(bound, generated.bound), deadline)


def _presolved(shape: Shape, problem: Instance, deadline: float, clock: Clock) -> Instance:
    clock.spend(PRESOLVE_SECONDS * len(problem.ops))
    return presolve(problem, shape.fed, shape.used, within(clock, deadline, 0.6), clock.now).instance


def _improved(whole: Instance, kernels: Partition, options: SolveOptions, deadline: float, clock: Clock) -> Partition:
    """Window by window. Without presolve's ties every legal kernel can be said in atoms, the warm start's too."""
    atoms = find_atoms(whole)
    known = _incumbent(whole, atoms, (), kernels).kernels
    return (
        kernels if known is None else _partition(atoms, improve(whole, atoms, known, options, deadline, clock), kernels)
    )


def _demand_cover(problem: Instance, atoms: Atoms, pool: Pool) -> None:
    covered = 0
    for candidate in pool.candidates:
        covered |= candidate.mask
    missing = [op for atom in bits((1 << len(atoms.ops)) - 1 & ~covered) for op in atoms.ops[atom]]
    if missing and not problem.variants:
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
