"""Column generation: candidates are listed where the dual prices of the linear relaxation ask for them.

For blocks with too many candidates to list. The relaxation over the candidates known so far prices each atom; kernels
that cost less than the prices of their atoms are grown, from single atoms and from the kernels that the relaxation
uses, and become candidates; and so on. Dual prices of so degenerate a program swing from round to round, so kernels are
grown by their moving average, and by themselves where that finds few. The relaxation's own bound holds for the
candidates alone: this strategy finds incumbents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from optfuse.problem.op_masks import bits
from optfuse.solver.columns.candidates import Candidate, Pool, price_alone
from optfuse.solver.columns.compatibility import compatible_atoms
from optfuse.solver.columns.growth import STEP_SECONDS, Growth
from optfuse.solver.columns.priced_growth import improving
from optfuse.solver.master.master import Master
from optfuse.solver.master.relaxation import UNIT, LinearMaster, Relaxation
from optfuse.solver.strategies.block import BlockResult, Budget
from optfuse.solver.strategies.listing import Presolved, best_in_pool, incumbent_of

#: Steps from a single atom and from a kernel of the relaxation, at first; twice as many where a round finds little, up
#: to ``MOST_TIMES`` as many.
ATOM_STEPS, KERNEL_STEPS, MOST_TIMES = 2, 10, 32
#: The candidates taken of one start, and of a round; a round that finds fewer than ``FEW`` finds little.
EACH, MOST_ADDED, FEW = 8, 400, 20
#: The weight of the past in the moving average of the prices.
PAST = 0.3
#: A kernel must cost less than its price by this share of a launch.
LEAST_SHARE = 1000
#: The generation ends where so many rounds together lowered the relaxation by less than this share.
ROUNDS, LOWERED = 12, 2e-4
#: The share of the time for generation; the rest is for the choice among the candidates.
GENERATION_SHARE = 0.6


def best_generated(block: Presolved, known: BlockResult, budget: Budget) -> BlockResult:
    """The best choice among candidates that dual prices ask for; the bound stays."""
    if not budget.allows(STEP_SECONDS * len(block.atoms.ops)):
        return known.idle()
    generation = _begun(block, known, budget.part(GENERATION_SHARE))
    generation.run()
    return best_in_pool(block, Pool(tuple(generation.candidates), complete=False), known, budget)


@dataclass(slots=True)
class _Generation:
    """The candidates so far, and the cost of each set of atoms among them; what they grow from; the relaxation."""

    block: Presolved
    budget: Budget
    growths: list[Growth]
    candidates: list[Candidate]
    costs: dict[int, int]
    linear: LinearMaster
    least: int
    times: int = 1
    average: list[int] = field(default_factory=list)
    levels: list[int] = field(default_factory=list)

    def run(self) -> None:
        """Rounds until one finds nothing, the relaxation hardly gets cheaper, or time is up."""
        while not self.budget.spent:
            relaxation = self.linear.relax(self.budget.deadline)
            self.levels.append(relaxation.level)
            if self.budget.spent or self._is_flat() or not self._round(relaxation):
                return

    def _is_flat(self) -> bool:
        if self.times < MOST_TIMES or len(self.levels) <= ROUNDS:
            return False
        return self.levels[-1] > (1 - LOWERED) * self.levels[-1 - ROUNDS]

    def _round(self, relaxation: Relaxation) -> bool:
        """Whether a round found candidates of negative reduced cost."""
        prices = self._atom_prices(relaxation)
        average = [
            round(PAST * old + (1 - PAST) * new) for old, new in zip(self.average or prices, prices, strict=True)
        ]
        used = [
            candidate.mask
            for candidate, value in zip(self.candidates, relaxation.values, strict=True)
            if value > 0 and candidate.mask & candidate.mask - 1
        ]
        found = self._grown(average, used, prices)
        if len(found) < FEW:
            average, found = prices, self._grown(prices, used, prices)
        while len(found) < FEW and self.times < MOST_TIMES and not self.budget.spent:
            self.times *= 2
            found = self._grown(prices, used, prices)
        self.average = average
        if not found:
            return False
        added = [candidate for _, candidate in sorted(found, key=lambda pair: pair[0])[:MOST_ADDED]]
        for candidate in added:
            self.costs[candidate.mask] = candidate.cost
        self.candidates += added
        self.linear.extend(added)
        return True

    def _atom_prices(self, relaxation: Relaxation) -> list[int]:
        """The dual price of each atom, in picoseconds: the sum of its covers' prices."""
        prices = [0] * len(self.block.atoms.ops)
        for cover, price in zip(self.block.covers[0], relaxation.prices, strict=True):
            prices[cover.atom] += price
        return [price // UNIT for price in prices]

    def _grown(self, guide: Sequence[int], used: Sequence[int], prices: Sequence[int]) -> list[tuple[int, Candidate]]:
        """New candidates, grown by the prices of ``guide``, that cost less than the true prices of their atoms."""
        found: dict[int, tuple[int, Candidate]] = {}
        for growth in self.growths:
            growth.price_by(guide)
            starts = [(1 << atom, ATOM_STEPS) for atom in bits(growth.compatibility.allowed)]
            starts += [(mask, KERNEL_STEPS) for mask in used]
            for kernel, steps in starts:
                before = growth.steps
                for _, candidate in improving(growth, kernel, steps * self.times, self.least)[:EACH]:
                    reduced = candidate.cost - sum(prices[atom] for atom in bits(candidate.mask))
                    known = self.costs.get(candidate.mask)
                    best = found.get(candidate.mask)
                    is_cheaper = best is None or candidate.cost < best[1].cost
                    if reduced < -self.least and is_cheaper and (known is None or candidate.cost < known):
                        found[candidate.mask] = reduced, candidate
                self.budget.clock.spend((growth.steps - before) * STEP_SECONDS)
                if self.budget.spent:
                    return list(found.values())
        return list(found.values())


def _begun(block: Presolved, known: BlockResult, budget: Budget) -> _Generation:
    """A generation that begins with the kernels of single atoms and those of the incumbent."""
    problem, atoms = block.reduced, block.atoms
    alone: dict[int, tuple[int, int]] = {}
    for atom in range(len(atoms.ops)):
        price_alone(problem, atoms, atom, alone)
    candidates = [Candidate(mask, scheme, cost) for mask, (cost, scheme) in alone.items()]
    start = incumbent_of(block.whole, atoms, candidates, known.kernels)
    candidates += [kernel for kernel in start.kernels or () if kernel.mask not in alone]
    growths = []
    for scheme in range(1, len(problem.schemes)):
        if budget.spent:
            break
        compatibility = compatible_atoms(problem, atoms, scheme)
        if compatibility.allowed & compatibility.allowed - 1:
            growths.append(Growth(problem, atoms, compatibility, alone, budget.deadline, budget.clock))
    return _Generation(
        block=block,
        budget=budget,
        growths=growths,
        candidates=candidates,
        costs={candidate.mask: candidate.cost for candidate in candidates},
        linear=LinearMaster(Master(tuple(candidates), *block.covers), range(len(candidates)), budget.clock),
        least=max(1, min(device.launch_ps for device in problem.devices) // LEAST_SHARE),
    )
