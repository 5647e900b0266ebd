"""The master problem of a block as plain data:

- minimise the sum of cost[k] * chosen[k];
- cover: each atom lies in exactly one chosen candidate, an atom of alternatives if and only if one of them is taken;
- variants: one alternative is taken of each variant;
- cuts: no chosen candidates form a cycle (added when one is found).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optfuse.problem.instance import Instance
from optfuse.problem.legality import legal_index
from optfuse.problem.op_masks import mask_of
from optfuse.solver.columns.atoms import Atoms
from optfuse.solver.columns.candidates import Candidate


@dataclass(frozen=True, slots=True)
class Cover:
    """Atom ``atom`` is covered once if one of ``alternatives`` is taken; None: in any case."""

    atom: int
    alternatives: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Anchor:
    """The kernel that holds atom ``holds`` comes before that of atom ``entry``, because it holds one of ``sources``.

    It does so only when it does not hold ``entry`` itself.
    """

    holds: int
    entry: int
    sources: int

    def catches(self, mask: int) -> bool:
        """Whether the anchor is true of a candidate."""
        return bool(mask >> self.holds & 1 and mask & self.sources and not mask >> self.entry & 1)


@dataclass(frozen=True, slots=True)
class CycleCut:
    """Anchors of a cycle: each one's ``entry`` is what the next one ``holds``. They cannot all be true."""

    anchors: tuple[Anchor, ...]

    def weight(self, mask: int) -> int:
        """How many of the anchors a candidate makes true."""
        return sum(anchor.catches(mask) for anchor in self.anchors)

    @property
    def limit(self) -> int:
        """How many of the anchors may be true."""
        return len(self.anchors) - 1

    @property
    def touches(self) -> int:
        """The atoms of which every candidate of nonzero weight holds at least one."""
        return mask_of(anchor.holds for anchor in self.anchors)


@dataclass(frozen=True, slots=True)
class Master:
    """``variants`` are tuples of alternatives, which are numbered through all variants."""

    candidates: tuple[Candidate, ...]
    covers: tuple[Cover, ...]
    variants: tuple[tuple[int, ...], ...]
    cuts: tuple[CycleCut, ...] = ()

    @property
    def alternatives(self) -> int:
        """The number of alternatives of all variants."""
        return sum(map(len, self.variants))


def covers_of(problem: Instance, atoms: Atoms) -> tuple[tuple[Cover, ...], tuple[tuple[int, ...], ...]]:
    """The covers of a block, and the alternatives of each variant by number."""
    variants: list[tuple[int, ...]] = []
    taken_by: dict[int, list[int]] = {}
    number = 0
    for variant in problem.variants:
        variants.append(tuple(range(number, number + len(variant.alternatives))))
        for alternative in variant.alternatives:
            for op in alternative:
                taken_by.setdefault(op, []).append(number)
            number += 1
    mandatory = legal_index(problem).mandatory
    covers: dict[Cover, None] = {}
    for atom, ops in enumerate(atoms.ops):
        for op in ops:
            alternatives = None if mandatory >> op & 1 else tuple(taken_by[op])
            covers[Cover(atom, alternatives)] = None
    return tuple(covers), tuple(variants)


def total(candidates: Sequence[Candidate]) -> int:
    """The cost of a choice of candidates."""
    return sum(candidate.cost for candidate in candidates)
