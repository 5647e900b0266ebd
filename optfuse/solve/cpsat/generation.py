"""Column generation, for blocks with more candidates than can be listed.

Solve the relaxation over some candidates; take its prices; for every root find the kernels of largest profit and add
those that are legal; repeat. No two kernels of a solution have the same root, so at any time

    cost of any solution >= sum of all prices - sum over roots of the largest profit.

Once no root makes a profit this is the value of the relaxation over all candidates, listed or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optfuse.problem.instance import Instance
from optfuse.problem.legality import bits, is_legal, mask_of
from optfuse.solve.clock import WALL, Clock
from optfuse.solve.cpsat.atoms import Atoms
from optfuse.solve.cpsat.candidates import Candidate
from optfuse.solve.cpsat.master import Cover, Master
from optfuse.solve.cpsat.pricing import pricer
from optfuse.solve.cpsat.relaxation import UNIT, LinearMaster
from optfuse.solve.cpsat.rooted import Profit, Roots

MAX_ROUNDS = 200
#: How near the prices stay to those of the best bound so far.
TRUST = 0.8
LOWERING_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Generated:
    """Candidates worth having, and a lower bound on every solution of the block, in picoseconds."""

    candidates: tuple[Candidate, ...]
    bound: int


def generate(
    problem: Instance,
    atoms: Atoms,
    candidates: Sequence[Candidate],
    covers: Sequence[Cover],
    variants: tuple[tuple[int, ...], ...],
    deadline: float,
    clock: Clock = WALL,
) -> Generated:
    """Extend some candidates of a block by those that the relaxation wants, until ``deadline`` (of ``clock``)."""
    known = {candidate.mask: candidate for candidate in candidates}
    roots = Roots(problem, atoms, deadline, clock)
    bound = 0
    centre: list[int] = []
    trust = TRUST
    if clock.now() >= deadline:
        return Generated(tuple(candidates), bound)
    linear = LinearMaster(Master(tuple(known.values()), tuple(covers), variants), (), clock)
    for _ in range(MAX_ROUNDS):
        wanted = _by_atom(atoms, covers, linear.relax(deadline).prices)
        prices = _between(wanted, centre, trust) if centre else wanted
        found = _profits(roots, prices, deadline, clock)
        if found is None:
            return Generated(tuple(known.values()), bound)
        if not centre or _bound(prices, found) > bound:
            centre = prices
        bound = max(bound, _bound(prices, found))
        new = [
            candidate
            for mine in found
            for profit in mine
            if (candidate := _candidate(problem, atoms, profit, wanted, known)) is not None
        ]
        if new:
            linear.add_candidates(new)
            known.update((candidate.mask, candidate) for candidate in new)
            continue
        # All kernels seen from here are known: move to where the relaxation is, then look more closely there.
        if trust > 0:
            trust = trust - 0.3 if trust > 0.3 else 0.0
        elif not any(found) or not roots.look_closer():
            break
        else:
            trust = TRUST
    return Generated(tuple(known.values()), max(bound, _lowered(roots, centre, deadline, clock)))


def _between(wanted: Sequence[int], centre: Sequence[int], trust: float) -> list[int]:
    """Prices between those that the relaxation wants, which leap about, and the best so far."""
    share = round(trust * 16)
    return [(share * old + (16 - share) * new) // 16 for old, new in zip(centre, wanted, strict=True)]


def _profits(roots: Roots, prices: Sequence[int], deadline: float, clock: Clock) -> list[list[Profit]] | None:
    """The profits of every root; None when time runs out."""
    found: list[list[Profit]] = []
    for root in range(len(prices)):
        if clock.now() >= deadline:
            return None
        found.append(roots.profits(prices, root))
    return found


def _bound(prices: Sequence[int], found: Sequence[Sequence[Profit]]) -> int:
    paid = sum(max((profit.amount for profit in mine), default=0) for mine in found)
    return -((paid - sum(prices)) // UNIT)


def _lowered(roots: Roots, prices: Sequence[int], deadline: float, clock: Clock) -> int:
    """The best bound after lowering the prices of sets that are profitable but not legal, a few times."""
    prices = list(prices)
    best = 0
    for _ in range(LOWERING_ROUNDS):
        found = _profits(roots, prices, deadline, clock)
        if found is None:
            break
        best = max(best, _bound(prices, found))
        if not any(found):
            break
        for mine in found:
            if mine:
                worst = max(mine, key=lambda profit: profit.amount)
                for atom in bits(worst.atoms):
                    prices[atom] -= worst.amount // worst.atoms.bit_count()
    return best


def _by_atom(atoms: Atoms, covers: Sequence[Cover], prices: Sequence[int]) -> list[int]:
    """Prices of atoms. What alternatives may leave out has none."""
    found = [0] * len(atoms.ops)
    for cover, price in zip(covers, prices, strict=True):
        if cover.alternatives is None:
            found[cover.atom] += price
    return found


def _candidate(
    problem: Instance, atoms: Atoms, profit: Profit, prices: Sequence[int], known: Mapping[int, Candidate]
) -> Candidate | None:
    """The set of a profit, closed under paths, if it is legal, makes one at some prices, and is not known."""
    above = below = 0
    for atom in bits(profit.atoms):
        above |= atoms.before[atom]
        below |= atoms.after[atom]
    mask = profit.atoms | above & below
    ops = atoms.ops_of(mask)
    if any(profit.scheme not in pricer(problem).terms[op] for op in ops) or not is_legal(problem, ops, profit.scheme):
        return None
    cost = pricer(problem).price(mask_of(ops), profit.scheme)
    old = known.get(mask)
    gains = sum(prices[atom] for atom in bits(mask)) > cost * UNIT
    return Candidate(mask, profit.scheme, cost) if gains and (old is None or cost < old.cost) else None
