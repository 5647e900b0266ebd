"""Candidate kernels of a block: every connected, convex, legal set of ops, at the price of its cheapest scheme."""

from __future__ import annotations

from dataclasses import dataclass

from optfuse.problem.instance import Instance
from optfuse.problem.legality import is_legal
from optfuse.problem.op_masks import mask_of
from optfuse.solver.columns.atoms import Atoms
from optfuse.solver.columns.compatibility import compatible_atoms
from optfuse.solver.columns.growth import Growth
from optfuse.solver.columns.pricing import pricer
from optfuse.solver.control.clock import WALL, Clock


@dataclass(frozen=True, slots=True)
class Candidate:
    """A legal kernel: a set of atoms, the scheme in which it is cheapest, and its cost in picoseconds."""

    mask: int
    scheme: int
    cost: int


@dataclass(frozen=True, slots=True)
class Pool:
    """Candidates. ``complete``: there are no others."""

    candidates: tuple[Candidate, ...]
    complete: bool


def enumerate_candidates(
    problem: Instance,
    atoms: Atoms,
    limit: int,
    deadline: float,
    *,
    clock: Clock = WALL,
) -> Pool:
    """All candidates of a block.

    Args:
        limit: The most candidates.
        deadline: When to stop, a time of ``clock``.
    """
    best: dict[int, tuple[int, int]] = {}
    complete = True
    for atom in range(len(atoms.ops)):
        price_alone(problem, atoms, atom, best)
    for scheme in range(1, len(problem.schemes)):
        if clock.now() >= deadline:
            complete = False
            break
        compatibility = compatible_atoms(problem, atoms, scheme)
        if compatibility.allowed.bit_count() > 1 and len(best) < limit:
            complete &= Growth(problem, atoms, compatibility, best, deadline, clock).grow(limit)
    complete &= len(best) < limit
    return Pool(tuple(Candidate(mask, scheme, cost) for mask, (cost, scheme) in best.items()), complete)


def price_alone(problem: Instance, atoms: Atoms, atom: int, best: dict[int, tuple[int, int]]) -> None:
    """Add the kernel of a single atom to ``best``, if some scheme allows it."""
    ops = atoms.ops[atom]
    pricing = pricer(problem)
    mask = mask_of(ops)
    prices = [
        (pricing.price(mask, scheme), scheme) for scheme in pricing.terms[ops[0]] if is_legal(problem, ops, scheme)
    ]
    if prices:
        best[1 << atom] = min(prices)
