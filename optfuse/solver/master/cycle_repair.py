"""Repair of a partition with cycles of kernels: split some of the kernels at the least cost.

Cuts forbid such a partition; a repaired one is a good incumbent. A kernel on a cycle is split where the cycle enters or
leaves it, into the descendants of the entries and the rest. Both parts are convex, since one is closed under
descendants within the kernel, and their connected pieces are legal kernels. At least one kernel of every cycle can be
split so: if in all of them every atom were a descendant of an entry, the atoms themselves would form a cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from optfuse.problem.instance import Instance
from optfuse.problem.legality import component, is_legal, legal_index
from optfuse.problem.op_masks import bits, mask_of
from optfuse.solver.columns.atoms import Atoms
from optfuse.solver.columns.candidates import Candidate
from optfuse.solver.columns.pricing import pricer
from optfuse.solver.master.cycles import cycles_of


def split_cycles(
    problem: Instance, atoms: Atoms, kernels: Sequence[Candidate], known: Mapping[int, Candidate]
) -> tuple[Candidate, ...] | None:
    """The kernels, some of them split until none form a cycle.

    ``known`` are candidates by mask, from which a part takes its cheapest scheme. None where no split helps, which only
    paths through ops of variants can cause.
    """
    current = list(kernels)
    while cycles := cycles_of(atoms, [kernel.mask for kernel in current]):
        gone: set[int] = set()
        added: list[Candidate] = []
        for cycle in cycles:
            if gone.intersection(cycle):
                continue  # one of its kernels was split already; the next round finds what is left of it
            choice = _cheapest_split(problem, atoms, [current[number] for number in cycle], known)
            if choice is None:
                return None
            place, parts = choice
            gone.add(cycle[place])
            added += parts
        current = [kernel for number, kernel in enumerate(current) if number not in gone] + added
    return tuple(current)


def _cheapest_split(
    problem: Instance, atoms: Atoms, cycle: Sequence[Candidate], known: Mapping[int, Candidate]
) -> tuple[int, list[Candidate]] | None:
    """The position of the kernel of a cycle to split, and its parts."""
    best: tuple[int, int, list[Candidate]] | None = None
    for place, kernel in enumerate(cycle):
        before, after = cycle[place - 1].mask, cycle[(place + 1) % len(cycle)].mask
        for part in _halves(atoms, kernel.mask, before, after):
            parts = [
                *_pieces(problem, atoms, part, kernel.scheme, known),
                *_pieces(problem, atoms, kernel.mask & ~part, kernel.scheme, known),
            ]
            loss = sum(piece.cost for piece in parts) - kernel.cost
            if (best is None or loss < best[0]) and all(_stands(problem, atoms, piece) for piece in parts):
                best = loss, place, parts
    return None if best is None else best[1:]


def _halves(atoms: Atoms, mask: int, before: int, after: int) -> Iterator[int]:
    """Two ways to split a kernel: its atoms behind the entry from ``before``, or ahead of the exit to ``after``."""
    behind = ahead = 0
    for atom in bits(mask):
        if atoms.sources[atom] & before:
            behind |= 1 << atom | atoms.after[atom]
    for atom in bits(after):
        for source in bits(atoms.sources[atom] & mask):
            ahead |= 1 << source | atoms.before[source]
    for part in (behind & mask, ahead & mask):
        if part and part != mask:
            yield part


def _pieces(
    problem: Instance, atoms: Atoms, mask: int, scheme: int, known: Mapping[int, Candidate]
) -> Iterable[Candidate]:
    """The connected parts of a set of atoms, as kernels."""
    index, prices = legal_index(problem), pricer(problem)
    rest = mask_of(atoms.ops_of(mask))
    while rest:
        part = component(index, rest, scheme) if problem.limits.connected else rest
        rest &= ~part
        piece = atoms.mask(list(bits(part)))
        found = Candidate(piece, scheme, prices.price(part, scheme))
        cheaper = known.get(piece, found)
        yield cheaper if cheaper.cost < found.cost else found


def _stands(problem: Instance, atoms: Atoms, piece: Candidate) -> bool:
    return is_legal(problem, atoms.ops_of(piece.mask), piece.scheme)
