"""Candidate kernels: every connected, convex, legal set of ops of a block, once, at the price of its best scheme.

A set grows from its first atom. Adding a neighbour adds the whole convex hull; each neighbour is first taken, then
forbidden for the rest of the branch, so no set appears twice. Almost every step of the search yields a candidate: the
only steps lost are those whose hull meets something forbidden.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from optfuse.problem.instance import Instance
from optfuse.problem.legality import bits, is_connected, is_legal, legal_index, mask_of
from optfuse.solve.cpsat.atoms import Atoms
from optfuse.solve.cpsat.pricing import pricer
from optfuse.solve.cpsat.sums import SumTable, sum_table

#: Steps between two looks at the clock.
STEPS = 2048


@dataclass(frozen=True, slots=True)
class Candidate:
    """A legal kernel: a set of atoms, the scheme in which it is cheapest, and its cost in picoseconds."""

    mask: int
    scheme: int
    cost: int


@dataclass(frozen=True, slots=True)
class Pool:
    """Candidates, and whether they are all that there are."""

    candidates: tuple[Candidate, ...]
    complete: bool


@dataclass(frozen=True, slots=True, eq=False)
class Meeting:
    """Which atoms can meet in the kernels of a scheme. ``links`` connect; ``clashes`` never share a kernel."""

    scheme: int
    allowed: int
    links: Mapping[int, int]
    clashes: Mapping[int, int]


def enumerate_candidates(problem: Instance, atoms: Atoms, limit: int, deadline: float) -> Pool:
    """All candidates of a block, or the first ``limit`` of them, or those found until ``deadline`` (monotonic)."""
    best: dict[int, tuple[int, int]] = {}
    complete = True
    for atom in range(len(atoms.ops)):
        price_alone(problem, atoms, atom, best)
    for scheme in range(1, len(problem.schemes)):
        meeting = meet(problem, atoms, scheme)
        if meeting.allowed & meeting.allowed - 1:
            complete &= _grow(problem, atoms, meeting, best, limit, deadline)
    return Pool(tuple(Candidate(mask, scheme, cost) for mask, (cost, scheme) in best.items()), complete)


def price_alone(problem: Instance, atoms: Atoms, atom: int, best: dict[int, tuple[int, int]]) -> None:
    """Put a kernel of a single atom among the candidates, if some scheme allows it."""
    ops = atoms.ops[atom]
    pricing = pricer(problem)
    mask = mask_of(ops)
    prices = [
        (pricing.price(mask, scheme), scheme) for scheme in pricing.terms[ops[0]] if is_legal(problem, ops, scheme)
    ]
    if prices:
        best[1 << atom] = min(prices)


def meet(problem: Instance, atoms: Atoms, scheme: int) -> Meeting:
    """Find out which atoms may run in a scheme's kernels, what links them and what keeps them apart."""
    index = legal_index(problem)
    allowed = 0
    clashes: dict[int, int] = {}
    for atom, ops in enumerate(atoms.ops):
        if atoms.sealed >> atom & 1 or any(scheme not in index.footprints[op] for op in ops):
            continue
        allowed |= 1 << atom
        clashes[atom] = atoms.mask([other for op in ops for other in bits(index.apart[op])])
    links = dict.fromkeys(bits(allowed), 0 if problem.limits.connected else allowed)
    for op, successors in enumerate(index.successors):
        for after, schemes in successors:
            first, second = atoms.of[op], atoms.of[after]
            if not allowed >> first & allowed >> second & 1:
                continue
            table = links if scheme in schemes else clashes
            table[first] |= 1 << second
            table[second] |= 1 << first
    readers: dict[tuple[int, int], int] = {}
    devices: dict[int, int] = {}
    for atom in bits(allowed):
        for op in atoms.ops[atom]:
            device = problem.ops[op].device
            devices[device] = devices.get(device, 0) | 1 << atom
            for key in index.footprints[op][scheme]:
                readers[key] = readers.get(key, 0) | 1 << atom
    for mask in readers.values():
        for atom in bits(mask):
            links[atom] |= mask
    for mask in devices.values() if len(devices) > 1 else ():
        for atom in bits(mask):
            clashes[atom] |= sum(devices.values()) & ~mask
    for atom in bits(allowed):
        if clashes[atom] >> atom & 1:
            allowed ^= 1 << atom
    return Meeting(scheme, allowed, links, clashes)


def _doubt(problem: Instance, atoms: Atoms, meeting: Meeting) -> Callable[[int], bool] | None:
    """The test of what the search takes for granted: atoms that hang together, and paths that are certain to run."""
    if problem.variants:
        return lambda mask: is_legal(problem, atoms.ops_of(mask), meeting.scheme)
    index = legal_index(problem)
    if problem.limits.connected and not all(
        len(atoms.ops[atom]) == 1 or is_connected(index, mask_of(atoms.ops[atom]), meeting.scheme)
        for atom in bits(meeting.allowed)
    ):
        return lambda mask: is_connected(index, mask_of(atoms.ops_of(mask)), meeting.scheme)
    return None


def _grow(
    problem: Instance,
    atoms: Atoms,
    meeting: Meeting,
    best: dict[int, tuple[int, int]],
    limit: int,
    deadline: float,
) -> bool:
    """Add every kernel of two or more atoms in one scheme; False when stopped early."""
    before, after = atoms.before, atoms.after
    links, clashes, allowed = meeting.links, meeting.clashes, meeting.allowed
    sizes = [len(ops) for ops in atoms.ops]
    weights = [sum(problem.ops[op].weight for op in ops) for ops in atoms.ops]
    max_ops, max_weight = problem.limits.max_ops, problem.limits.max_weight
    scheme = meeting.scheme
    table = sum_table(pricer(problem), atoms, scheme, allowed)
    finish = _finisher(problem, atoms, scheme, table)
    legal = _doubt(problem, atoms, meeting)
    steps = 0
    for root in bits(allowed):
        bit = 1 << root
        memory = table.grown(0, 0, root) if table else 0
        compute = table.compute[root] if table else 0
        stack = [
            (bit, bit - 1 | ~allowed | clashes[root], before[root], after[root], links[root], sizes[root],
             weights[root], memory, compute)
        ]  # fmt: skip
        while stack:
            mask, banned, above, below, near, size, weight, memory, compute = stack.pop()
            steps += 1
            if not steps % STEPS and time.monotonic() > deadline:
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
                for one in bits(added):
                    new_banned |= clashes[one]
                    new_near |= links[one]
                    new_above |= before[one]
                    new_below |= after[one]
                    new_size += sizes[one]
                    new_weight += weights[one]
                    if table:
                        new_memory = table.grown(new_memory, grown, one)
                        new_compute += table.compute[one]
                    grown |= 1 << one
                banned |= low
                if new_banned & grown or new_size > max_ops or new_weight > max_weight:
                    continue
                if legal is None or legal(grown):
                    price = finish(grown, new_memory, new_compute)
                    known = best.get(grown)
                    if known is None:
                        if len(best) >= limit:
                            return False
                        best[grown] = price, scheme
                    elif price < known[0]:
                        best[grown] = price, scheme
                stack.append(
                    (grown, new_banned, new_above, new_below, new_near, new_size, new_weight, new_memory, new_compute)
                )
    return True


def _finisher(
    problem: Instance, atoms: Atoms, scheme: int, table: SumTable | None
) -> Callable[[int, int, int], int]:
    """From (atoms, memory time, compute time) to cost; the last two mean nothing where there is no table."""
    pricing = pricer(problem)

    def exactly(mask: int, memory: int, compute: int) -> int:
        return pricing.price(mask_of(atoms.ops_of(mask)), scheme)

    if table is None:
        return exactly
    facts = problem.schemes[scheme]
    device = problem.devices[table.device]
    launch, reduces = device.launch_ps, table.reduces
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
        return launch + (memory if memory > compute else compute)

    return summed
