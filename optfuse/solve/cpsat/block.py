"""Solve one block: presolve, candidates, master problem; and what to do when there are too many candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from optfuse.errors import IllegalKernelError
from optfuse.problem.instance import Instance
from optfuse.problem.legality import bits, is_legal, mask_of
from optfuse.problem.presolve import presolve
from optfuse.solve.clock import WALL, Clock, within
from optfuse.solve.cpsat.atoms import Atoms, find_atoms
from optfuse.solve.cpsat.blocks import Shape
from optfuse.solve.cpsat.candidates import Candidate, Pool, enumerate_candidates
from optfuse.solve.cpsat.floor import floor_cost
from optfuse.solve.cpsat.generation import generate
from optfuse.solve.cpsat.limits import cut_to_size, fits, launches, without_launches, without_limits
from optfuse.solve.cpsat.master import Cover, Master, covers_of
from optfuse.solve.cpsat.neighbourhood import improve
from optfuse.solve.cpsat.parts import loosened, parts_bound
from optfuse.solve.cpsat.pricing import pricer
from optfuse.solve.cpsat.search import Incumbent, search
from optfuse.solve.greedy import greedy
from optfuse.solve.options import SolveOptions

#: Candidates of one block that are listed at once, and at most; beyond that it is solved over some of them.
FEW_CANDIDATES = 200_000
MAX_CANDIDATES = 600_000
#: In the first round of generation, candidates of a scheme that start at the same atom.
SOME_CANDIDATES = 200
#: Blocks of more ops are left as they are where a bound without search is as close as this.
LARGE_OPS = 1500
CLOSE = 0.02
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
    candidates: int
    cuts: int
    rounds: int
    complete: bool


def cost_of(problem: Instance, kernels: Partition) -> int:
    """The cost of a partition in picoseconds."""
    prices = pricer(problem)
    return sum(prices.price(mask_of(ops), scheme) for ops, scheme in kernels)


def solve_block(
    shape: Shape, warm: Partition, options: SolveOptions, deadline: float, clock: Clock = WALL
) -> BlockResult:
    """Solve a block. ``warm`` is a legal, acyclic partition of it: the result costs no more.

    Presolve needs to know that a kernel has room for one more. So the limits on a kernel's size are lifted first, and
    the block is solved as it is only if the answer breaks them: the bound holds either way.

    Raises:
        IllegalKernelError: When the rules leave an op without any kernel.
    """
    whole = shape.problem
    if len(whole.ops) == 1:
        return _single(whole)
    floor = floor_cost(whole)
    if clock.now() >= deadline:
        cost = cost_of(whole, warm)
        return BlockResult(warm, cost, min(floor, cost), 0, 0, 0, complete=False)
    floor = max(floor, _floor_by_parts(shape, options, within(clock, deadline, 0.1), clock))
    if _is_close(whole, warm, floor):
        cost = cost_of(whole, warm)
        return BlockResult(warm, cost, min(floor, cost), 0, 0, 0, complete=False)
    roomy = without_limits(whole)
    until = within(clock, deadline, 1.0 if roomy is whole else 0.75)
    first = _attempt(shape, roomy, warm, floor, options, until, clock)
    if all(fits(whole, ops) for ops, _ in first.kernels):
        return first
    start, bound = _to_size(shape, first, warm, options, within(clock, deadline, 0.5), clock)
    cost = cost_of(whole, start)
    if bound >= cost:
        return replace(first, kernels=start, cost=cost, bound=cost)
    second = _attempt(shape, whole, start, bound, options, deadline, clock)
    return replace(
        second,
        candidates=first.candidates + second.candidates,
        cuts=first.cuts + second.cuts,
        rounds=first.rounds + second.rounds,
    )


def _floor_by_parts(shape: Shape, options: SolveOptions, deadline: float, clock: Clock) -> int:
    """A bound from the parts of a block that small values tie together; 0 for most blocks, which have none."""
    whole = shape.problem
    loose = loosened(whole) if len(whole.ops) > whole.limits.max_ops else None
    if loose is None:
        return 0

    def least(part: Shape) -> int:
        start = tuple((kernel.ops, kernel.scheme) for kernel in greedy(part.problem).kernels)
        return solve_block(part, start, options, deadline, clock).bound

    return parts_bound(whole, loose, least)


def _is_close(whole: Instance, warm: Partition, bound: int) -> bool:
    """Whether a block is so large, and its bound so near, that listing candidates would not settle the rest."""
    return len(whole.ops) > LARGE_OPS and bound >= (1 - CLOSE) * cost_of(whole, warm)


def _to_size(
    shape: Shape, roomy: BlockResult, warm: Partition, options: SolveOptions, deadline: float, clock: Clock
) -> tuple[Partition, int]:
    """What an answer without limits on a kernel's size says of the block with them: a partition and a bound."""
    whole = shape.problem
    cut = tuple(cut_to_size(whole, roomy.kernels))
    if all(is_legal(whole, ops, scheme) for ops, scheme in cut) and cost_of(whole, cut) < cost_of(whole, warm):
        warm = cut
    free = replace(shape, problem=without_launches(without_limits(whole)))
    freed = _attempt(free, free.problem, roomy.kernels, 0, options, deadline, clock)
    return warm, max(roomy.bound, freed.bound + launches(whole))


def _single(problem: Instance) -> BlockResult:
    """A block of one op: its cheapest scheme."""
    prices = pricer(problem)
    cost, scheme = min((prices.price(1, scheme), scheme) for scheme in prices.terms[0])
    return BlockResult((((0,), scheme),), cost, cost, 1, 0, 0, complete=True)


def _attempt(
    shape: Shape,
    problem: Instance,
    warm: Partition,
    bound: int,
    options: SolveOptions,
    deadline: float,
    clock: Clock,
) -> BlockResult:
    """Presolve, list or generate candidates, solve the master problem. ``bound`` is known already.

    A few candidates are listed in any case. Where there are more, the relaxation says which are wanted; only if that
    does not settle the block are all of them listed, as far as there is room.
    """
    whole = shape.problem
    reduced = _presolved(shape, problem, deadline, clock)
    atoms = find_atoms(reduced)
    task = _Task(whole, reduced, atoms, covers_of(reduced, atoms), options, clock)
    pool = enumerate_candidates(reduced, atoms, FEW_CANDIDATES, within(clock, deadline, 0.5), clock=clock)
    _demand_cover(reduced, atoms, pool)
    if pool.complete:
        return _chosen(task, pool, warm, bound, deadline)
    if not problem.variants:
        warm = _improved(whole, warm, options, within(clock, deadline, 0.25), clock)
    first = _generated(task, warm, bound, within(clock, deadline, 0.85))
    if first.cost == first.bound or clock.now() >= deadline:
        return first
    pool = enumerate_candidates(reduced, atoms, MAX_CANDIDATES, within(clock, deadline, 0.5), clock=clock)
    if not pool.complete:
        if problem.variants:
            return first
        kernels = _improved(whole, first.kernels, options, deadline, clock)
        return replace(first, kernels=kernels, cost=cost_of(whole, kernels))
    second = _chosen(task, pool, first.kernels, first.bound, deadline)
    return replace(second, cuts=first.cuts + second.cuts, rounds=first.rounds + second.rounds)


@dataclass(frozen=True, slots=True)
class _Task:
    """A block as it is and presolved, and what all ways of solving it need."""

    whole: Instance
    reduced: Instance
    atoms: Atoms
    covers: tuple[tuple[Cover, ...], tuple[tuple[int, ...], ...]]
    options: SolveOptions
    clock: Clock


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
