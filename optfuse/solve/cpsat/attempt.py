"""One way through a block: presolve, candidates, master problem; and what to do when there are too many candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from optfuse.errors import IllegalKernelError
from optfuse.problem.cost import default_writes, kernel_cost
from optfuse.problem.instance import Instance
from optfuse.problem.legality import bits, mask_of
from optfuse.problem.presolve import presolve
from optfuse.solve.clock import Clock, enough, within
from optfuse.solve.cpsat.atoms import Atoms, find_atoms
from optfuse.solve.cpsat.blocks import LARGE_OPS, Shape
from optfuse.solve.cpsat.candidates import Candidate, Pool, enumerate_candidates
from optfuse.solve.cpsat.deferred import deferred
from optfuse.solve.cpsat.few import is_plain
from optfuse.solve.cpsat.master import Cover, Master, covers_of
from optfuse.solve.cpsat.pricing import pricer
from optfuse.solve.cpsat.search import Incumbent, search
from optfuse.solve.options import SolveOptions

#: Candidates of one block that are listed at once, and at most; beyond that it is solved over some of them.
FEW_CANDIDATES = 200_000
MAX_CANDIDATES = 600_000
#: Of too many candidates to list, those of a scheme that start at the same atom and are tried first.
SOME_CANDIDATES = 200
#: What presolve takes for an op, roughly.
PRESOLVE_SECONDS = 3e-4
#: What it takes to say the warm start in atoms and to look at one candidate, for each op and each candidate, roughly.
START_SECONDS = 1e-4
CANDIDATE_SECONDS = 2e-5
#: What another start takes for an op, roughly.
DEFERRED_SECONDS = 4e-4

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
    """The cost of a partition in picoseconds. What is left in memory depends on which alternatives run."""
    if problem.variants:
        running = {op for ops, _ in kernels for op in ops}
        return sum(
            kernel_cost(problem, ops, scheme, default_writes(problem, ops, scheme, running)) for ops, scheme in kernels
        )
    prices = pricer(problem)
    return sum(prices.price(mask_of(ops), scheme) for ops, scheme in kernels)


@dataclass(frozen=True, slots=True)
class Task:
    """A block as it is and presolved, and what all ways of solving it need."""

    whole: Instance
    reduced: Instance
    atoms: Atoms
    covers: tuple[tuple[Cover, ...], tuple[tuple[int, ...], ...]]
    options: SolveOptions
    clock: Clock


def prepare(shape: Shape, problem: Instance, options: SolveOptions, deadline: float, clock: Clock) -> Task | None:
    """Presolve ``problem``, the block of a shape or one that differs from it in limits or launches alone.

    None where there is no time for it.
    """
    count = len(problem.ops)
    if not enough(clock, deadline, PRESOLVE_SECONDS * count):
        return None
    clock.spend(PRESOLVE_SECONDS * count)
    reduced = presolve(problem, shape.fed, shape.used, within(clock, deadline, 0.6), clock.now).instance
    if not enough(clock, deadline, START_SECONDS * count):
        return None
    atoms = find_atoms(reduced)
    return Task(shape.problem, reduced, atoms, covers_of(reduced, atoms), options, clock)


def attempt(task: Task | None, known: BlockResult, deadline: float) -> BlockResult:
    """Solve a block of which a partition and a bound are known; without a task they are the answer.

    A few candidates are listed in any case. Where there are more, the relaxation says which are wanted; only if that
    does not settle the block are all of them listed, as far as there is room.

    Raises:
        IllegalKernelError: When the rules leave an op without any kernel.
    """
    return listed(task, known, deadline) or sampled(task, known, deadline)


def sampled(task: Task | None, known: BlockResult, deadline: float) -> BlockResult:
    """The same, where it is known that there are more than a few candidates."""
    if task is None or not enough(task.clock, deadline, START_SECONDS * len(task.whole.ops)):
        return known
    whole, clock = task.whole, task.clock
    if len(whole.ops) <= LARGE_OPS:
        known = restarted(whole, known, deadline, clock)
    first = _among_some(task, known, within(clock, deadline, 0.85))
    if first.cost == first.bound or clock.now() >= deadline:
        return first
    second = listed(task, first, deadline, MAX_CANDIDATES)
    if second is not None:
        return replace(second, cuts=first.cuts + second.cuts, rounds=first.rounds + second.rounds)
    return first


def listed(task: Task | None, known: BlockResult, deadline: float, most: int = FEW_CANDIDATES) -> BlockResult | None:
    """The same, if there are at most so many candidates; None where there are more, or no time for them."""
    if task is None or not enough(task.clock, deadline, START_SECONDS * len(task.whole.ops)):
        return None
    until = within(task.clock, deadline, 0.5)
    pool = enumerate_candidates(task.reduced, task.atoms, most, until, clock=task.clock)
    if not pool.complete:
        return None
    _demand_cover(task.reduced, task.atoms, pool)
    return _chosen(task, pool, known.kernels, known.bound, deadline)


def _chosen(task: Task, pool: Pool, warm: Partition, bound: int, deadline: float) -> BlockResult:
    """Choose among the candidates of a pool and those of the warm start."""
    start, candidates = _started(task, pool, warm)
    master = Master(candidates, *task.covers)
    found = search(master, task.atoms, start, bound, task.options, deadline, task.clock)
    kernels = _partition(task.atoms, found.incumbent.kernels, warm)
    cost = cost_of(task.whole, kernels)
    bound = found.bound if pool.complete else bound
    return BlockResult(
        kernels, cost, min(bound, cost), len(candidates), len(found.cuts), found.rounds, complete=pool.complete
    )


def _among_some(task: Task, known: BlockResult, deadline: float) -> BlockResult:
    """The best choice among the first candidates of every atom; the bound stays."""
    clock = task.clock
    until = within(clock, deadline, 0.1)
    pool = enumerate_candidates(task.reduced, task.atoms, MAX_CANDIDATES, until, each=SOME_CANDIDATES, clock=clock)
    if not enough(clock, deadline, START_SECONDS * len(task.whole.ops) + CANDIDATE_SECONDS * len(pool.candidates)):
        return known
    return _chosen(task, replace(pool, complete=False), known.kernels, known.bound, deadline)


def _started(task: Task, pool: Pool, warm: Partition) -> tuple[Incumbent, tuple[Candidate, ...]]:
    """A warm start in atoms, and the candidates of a pool and its own."""
    start = _incumbent(task.whole, task.atoms, pool.candidates, warm)
    masks = {candidate.mask for candidate in pool.candidates}
    return start, (*pool.candidates, *(kernel for kernel in start.kernels or () if kernel.mask not in masks))


def restarted(whole: Instance, known: BlockResult, deadline: float, clock: Clock) -> BlockResult:
    """The better of what is known and a partition with all that can wait put off."""
    if not is_plain(whole) or not enough(clock, deadline, DEFERRED_SECONDS * len(whole.ops)):
        return known
    kernels = deferred(whole, deadline, clock)
    clock.spend(DEFERRED_SECONDS * len(whole.ops))
    cost = cost_of(whole, kernels)
    return replace(known, kernels=kernels, cost=cost) if cost < known.cost else known


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
