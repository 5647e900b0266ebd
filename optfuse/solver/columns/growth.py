"""Enumerate the kernels of one scheme: every connected, convex set of atoms, once.

The search is that for connected subgraphs, with convex hulls. A set grows from its first atom. Adding a neighbour adds
the whole convex hull; each neighbour is first taken, then forbidden for the rest of the branch, so no set appears
twice. Only steps whose hull contains a forbidden atom yield no candidate.

Where not all sets are wanted, those that save most beside kernels of single atoms grow first: the kernels of a good
partition are mostly much larger than what comes first in any fixed order.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from optfuse.problem.instance import Instance
from optfuse.problem.legality import bits, mask_of
from optfuse.solver.columns.atoms import Atoms
from optfuse.solver.columns.compatibility import Compatibility, deferred_check
from optfuse.solver.columns.incremental_cost import IncrementalCost, incremental_cost
from optfuse.solver.columns.pricing import Pricer, pricer
from optfuse.solver.control.clock import WALL, Clock

#: Steps between two looks at the clock, and what one takes, roughly.
STEPS = 2048
STEP_SECONDS = 1e-5

#: A set of atoms, the atoms forbidden to it, its ancestors, descendants and neighbours, its op count, weight, memory
#: and compute time, and what its atoms cost as kernels of their own.
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
        self.alone = [best.get(1 << atom, (0, 0))[0] for atom in range(len(atoms.ops))]
        self.steps = 0

    def grow(self, within: int, limit: int, each: int | None = None) -> bool:
        """All kernels of two or more of the atoms of ``within``; False when stopped early.

        Stops when there are ``limit`` kernels in all, or time is up. With ``each``, at most so many start at one atom,
        those that grow from what saves most.
        """
        complete = True
        for root in bits(self.compatibility.allowed & within):
            stop = limit if each is None else min(limit, len(self.best) + each)
            done = self._grow_from(root, within, stop, best_first=each is not None)
            complete = complete and done
            if len(self.best) >= limit or self.clock.now() >= self.deadline:
                return False
        return complete

    def _start(self, root: int, within: int) -> State:
        table, compatibility, atoms = self.table, self.compatibility, self.atoms
        bit = 1 << root
        banned = bit - 1 | ~(compatibility.allowed & within) | compatibility.clashes[root]
        memory = table.grown(0, 0, root) if table else 0
        compute = table.compute[root] if table else 0
        return (
            bit, banned, atoms.before[root], atoms.after[root], compatibility.links[root],
            self.sizes[root], self.weights[root], memory, compute, self.alone[root],
        )  # fmt: skip

    def _grow_from(self, root: int, within: int, stop: int, *, best_first: bool) -> bool:
        """The kernels whose first atom is ``root``, until ``best`` holds ``stop``; False when stopped early."""
        before, after = self.atoms.before, self.atoms.after
        links, clashes, table = self.compatibility.links, self.compatibility.clashes, self.table
        limits, sizes, weights = self.problem.limits, self.sizes, self.weights
        alone, order = self.alone, count()
        stack, heap = [self._start(root, within)], list[tuple[int, int, State]]()
        while stack:
            mask, banned, above, below, near, size, weight, memory, compute, apart = stack.pop()
            self.steps += 1
            if not self.steps % STEPS:
                self.clock.spend(STEPS * STEP_SECONDS)
                if self.clock.now() >= self.deadline:
                    return False
            options = near & ~mask & ~banned
            while options:
                low = options & -options
                options ^= low
                atom = low.bit_length() - 1
                added = (low | below & before[atom] | above & after[atom]) & ~mask
                if added & banned:
                    banned |= low
                    continue
                grown, new_near, new_above, new_below = mask, near, above, below
                new_banned, new_size, new_weight, new_memory, new_compute = banned, size, weight, memory, compute
                new_apart = apart
                for one in (atom,) if added == low else bits(added):
                    new_banned |= clashes[one]
                    new_near |= links[one]
                    new_above |= before[one]
                    new_below |= after[one]
                    new_size += sizes[one]
                    new_weight += weights[one]
                    new_apart += alone[one]
                    if table:
                        new_memory = table.grown(new_memory, grown, one)
                        new_compute += table.compute[one]
                    grown |= 1 << one
                banned |= low
                if new_banned & grown or new_size > limits.max_ops or new_weight > limits.max_weight:
                    continue
                price = self._price(grown, new_memory, new_compute)
                if price is not None and not self._admit(grown, price, stop):
                    return False
                state = (
                    grown, new_banned, new_above, new_below, new_near,
                    new_size, new_weight, new_memory, new_compute, new_apart,
                )  # fmt: skip
                if best_first:
                    heappush(heap, (0 if price is None else price - new_apart, next(order), state))
                else:
                    stack.append(state)
            if heap and not stack:
                stack.append(heappop(heap)[2])
        return True

    def _price(self, mask: int, memory: int, compute: int) -> int | None:
        """The cost of a kernel; None where it is not legal."""
        return None if self.legal is not None and not self.legal(mask) else self.finish(mask, memory, compute)

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
