"""Enumerate the kernels of one scheme: every connected, convex set of atoms, once.

The search is that for connected subgraphs, with convex hulls. A set grows from its first atom. Adding a neighbour adds
the whole convex hull; each neighbour is first taken, then forbidden for the rest of the branch, so no set appears
twice. Only steps whose hull contains a forbidden atom yield no candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from optfuse.problem.instance import Instance
from optfuse.problem.op_masks import bits, mask_of
from optfuse.solver.columns.atoms import Atoms
from optfuse.solver.columns.compatibility import Compatibility, deferred_check
from optfuse.solver.columns.incremental_cost import IncrementalCost, incremental_cost
from optfuse.solver.columns.pricing import Pricer, pricer
from optfuse.solver.control.clock import WALL, Clock

#: Steps between two looks at the clock, and what one takes, roughly.
STEPS = 2048
STEP_SECONDS = 1e-5

#: A set of atoms, the atoms forbidden to it, its ancestors, descendants and neighbours, its op count, weight, memory
#: and compute time, and what its atoms are worth: as kernels of their own, or by dual prices.
State = tuple[int, int, int, int, int, int, int, int, int, int]


class Growth:
    """Grows the kernels of one scheme into ``best``: by atoms, (cost, scheme) of the cheapest scheme so far."""

    def __init__(
        self,
        problem: Instance,
        atoms: Atoms,
        compatibility: Compatibility,
        best: dict[int, tuple[int, int]],
        deadline: float,
        clock: Clock = WALL,
    ) -> None:
        """``deadline`` is a time of ``clock``. ``best`` has the kernels of single atoms."""
        self.problem, self.atoms, self.compatibility, self.best = problem, atoms, compatibility, best
        self.deadline, self.clock = deadline, clock
        self.sizes = [len(ops) for ops in atoms.ops]
        self.weights = [sum(problem.ops[op].weight for op in ops) for ops in atoms.ops]
        self.table = incremental_cost(pricer(problem), atoms, compatibility.scheme, compatibility.allowed)
        self.finish = _finisher(problem, atoms, compatibility.scheme, self.table)
        self.legal = deferred_check(problem, atoms, compatibility)
        self.most_ops, self.most_weight = problem.limits.max_ops, problem.limits.max_weight
        self.steps = 0
        self.price_by([best.get(1 << atom, (0, 0))[0] for atom in range(len(atoms.ops))])

    def price_by(self, worths: Sequence[int]) -> None:
        """Set what each atom is worth, in picoseconds: at first what it costs as a kernel of its own."""
        self.worths = worths
        compatibility, atoms = self.compatibility, self.atoms
        self.facts = (
            atoms.before, atoms.after, compatibility.links, compatibility.clashes,
            self.sizes, self.weights, worths, self.table,
        )  # fmt: skip

    def grow(self, limit: int) -> bool:
        """All kernels of two or more atoms; False when stopped early: at ``limit`` kernels in all, or out of time."""
        for root in bits(self.compatibility.allowed):
            if not self._grow_from(root, limit) or self.clock.now() >= self.deadline:
                return False
        return len(self.best) < limit

    def start(self, atom: int, banned: int = 0) -> State:
        """A kernel of one atom."""
        table, compatibility, atoms = self.table, self.compatibility, self.atoms
        return (
            1 << atom, banned | compatibility.clashes[atom], atoms.before[atom], atoms.after[atom],
            compatibility.links[atom], self.sizes[atom], self.weights[atom],
            table.grown(0, 0, atom) if table else 0, table.compute[atom] if table else 0, self.worths[atom],
        )  # fmt: skip

    def hull(self, state: State, atom: int) -> int:
        """The atoms that join a kernel with ``atom``, so that it stays convex."""
        mask, _, above, below = state[:4]
        return (1 << atom | below & self.atoms.before[atom] | above & self.atoms.after[atom]) & ~mask

    def joined(self, state: State, added: int, banned: int) -> State | None:
        """A kernel after some atoms have joined it; None where it breaks a limit or holds atoms that are ``banned``.

        ``banned`` are atoms forbidden to the kernel, among them those of the state.
        """
        mask, _, above, below, near, size, weight, memory, compute, worth = state
        before, after, links, clashes, sizes, weights, worths, table = self.facts
        while added:
            low = added & -added
            added ^= low
            one = low.bit_length() - 1
            banned |= clashes[one]
            near |= links[one]
            above |= before[one]
            below |= after[one]
            size += sizes[one]
            weight += weights[one]
            worth += worths[one]
            if table:
                memory = table.grown(memory, mask, one)
                compute += table.compute[one]
            mask |= low
        if banned & mask or size > self.most_ops or weight > self.most_weight:
            return None
        return mask, banned, above, below, near, size, weight, memory, compute, worth

    def _grow_from(self, root: int, stop: int) -> bool:
        """The kernels whose first atom is ``root``, until ``best`` holds ``stop``; False when stopped early."""
        stack = [self.start(root, (1 << root) - 1 | ~self.compatibility.allowed)]
        while stack:
            state = stack.pop()
            mask, banned = state[:2]
            self.steps += 1
            if not self.steps % STEPS:
                self.clock.spend(STEPS * STEP_SECONDS)
                if self.clock.now() >= self.deadline:
                    return False
            options = state[4] & ~mask & ~banned
            while options:
                low = options & -options
                options ^= low
                added = self.hull(state, low.bit_length() - 1)
                if added & banned:
                    banned |= low
                    continue
                grown = self.joined(state, added, banned)
                banned |= low
                if grown is None:
                    continue
                price = self.price(grown)
                if price is not None and not self._admit(grown[0], price, stop):
                    return False
                stack.append(grown)
        return True

    def price(self, state: State) -> int | None:
        """The cost of a kernel; None where it is not legal."""
        mask = state[0]
        return None if self.legal is not None and not self.legal(mask) else self.finish(mask, state[7], state[8])

    def _admit(self, mask: int, price: int, stop: int) -> bool:
        """Put a kernel among the candidates; False when there is no room."""
        known = self.best.get(mask)
        if known is None and len(self.best) >= stop:
            return False
        if known is None or price < known[0]:
            self.best[mask] = price, self.compatibility.scheme
        return True


def _finisher(
    problem: Instance, atoms: Atoms, scheme: int, table: IncrementalCost | None
) -> Callable[[int, int, int], int]:
    """The function from (atoms, memory time, compute time) to cost; without a table it uses the atoms alone."""
    pricing = pricer(problem)

    def exactly(mask: int, memory: int, compute: int) -> int:
        return pricing.price(mask_of(atoms.ops_of(mask)), scheme)

    if table is None:
        return exactly
    facts = problem.schemes[scheme]
    device = problem.devices[table.device]
    launch, reduces = device.launch_ps, table.reduces
    dearer = _dearer_launches(pricing, atoms, table)
    programs = max(1, facts.parallel)
    needed = max(device.saturating_programs, programs)
    looped = facts.r > device.persistent_elements

    def summed(mask: int, memory: int, compute: int) -> int:
        if mask & reduces:
            if looped:
                repeated = table.repeated(mask)
                if repeated is None:
                    return exactly(mask, memory, compute)
                memory += repeated
            memory = memory * needed // programs
        for more, holding in dearer:
            if mask & holding:
                return launch + more + (memory if memory > compute else compute)
        return launch + (memory if memory > compute else compute)

    return summed


def _dearer_launches(pricing: Pricer, atoms: Atoms, table: IncrementalCost) -> list[tuple[int, int]]:
    """By how much ops make a launch dearer, and the atoms with such ops (a bitmask), the most first."""
    launch = pricing.problem.devices[table.device].launch_ps
    found: dict[int, int] = {}
    for atom in table.compute:
        more = max(pricing.launch[op] for op in atoms.ops[atom]) - launch
        found[more] = found.get(more, 0) | 1 << atom
    return sorted(((more, holding) for more, holding in found.items() if more), reverse=True)
