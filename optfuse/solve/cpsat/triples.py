"""Find the triple cuts that a fractional solution of the relaxation breaks.

Candidates that meet pairwise but have nothing in common, like three tilings of a chain that take turns, can share out
a half each. (In vehicle routing these are the subset-row inequalities of three rows.)
"""

from __future__ import annotations

from collections.abc import Sequence

from optfuse.problem.legality import bits
from optfuse.solve.cpsat.master import TripleCut

#: Cuts of one round, the most broken first, and by how much a cut must be broken to count.
MOST = 200
LEAST_EXCESS = 0.01
#: Triples looked at in one round.
LOOKS = 300_000


def find_triples(fractional: Sequence[tuple[float, int]]) -> list[TripleCut]:
    """Broken cuts of a fractional solution, given as pairs (value, atoms) of the candidates between 0 and 1."""
    holders: dict[int, list[int]] = {}
    for number, (_, mask) in enumerate(fractional):
        for atom in bits(mask):
            holders.setdefault(atom, []).append(number)
    # Atoms held by the same candidates are alike: one speaks for all.
    speakers = {tuple(numbers): atom for atom, numbers in holders.items()}
    speaking = sum(1 << atom for atom in speakers.values())
    reduced = [(value, mask & speaking) for value, mask in fractional]
    excess: dict[int, float] = {}
    looks = 0
    for one, (_, first) in enumerate(reduced):
        beside = sorted({number for atom in bits(first) for number in holders[atom] if number > one})
        for place, two in enumerate(beside):
            common = first & reduced[two][1]
            looks += len(beside) - place
            if looks > LOOKS:
                break
            for three in beside[place + 1 :]:
                third = reduced[three][1]
                if common & third or not third & reduced[two][1]:
                    continue
                triple = _lowest(common) | _lowest(first & third) | _lowest(reduced[two][1] & third)
                if triple not in excess:
                    held = {number for atom in bits(triple) for number in holders[atom]}
                    twice = (number for number in held if (reduced[number][1] & triple).bit_count() > 1)
                    excess[triple] = sum(reduced[number][0] for number in twice) - 1
    broken = [(amount, triple) for triple, amount in excess.items() if amount > LEAST_EXCESS]
    return [TripleCut(triple) for _, triple in sorted(broken, reverse=True)[:MOST]]


def _lowest(mask: int) -> int:
    return mask & -mask
