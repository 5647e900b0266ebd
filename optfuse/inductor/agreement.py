"""How alike two ways to put ops into kernels are: by the pairs of ops that share a kernel."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True, slots=True)
class Agreement:
    """Pairs of ops that share a kernel in ``both`` ways, or only in the ``first`` or the ``second``; of how many."""

    both: int
    first: int
    second: int
    pairs: int

    @property
    def jaccard(self) -> float:
        """Of the pairs that share a kernel in either way, the share that do in both; 1.0 when there is none."""
        either = self.both + self.first + self.second
        return self.both / either if either else 1.0

    @property
    def rand(self) -> float:
        """Of all pairs, the share that are together in both ways or apart in both; most are apart in any."""
        return 1.0 - (self.first + self.second) / self.pairs if self.pairs else 1.0


def agreement(first: Iterable[Collection[int]], second: Iterable[Collection[int]], among: Collection[int]) -> Agreement:
    """Compare two ways, looking at the ops of ``among`` only. An op may be in several kernels of one way."""
    ops = set(among)
    one, two = together(first, ops), together(second, ops)
    both = len(one & two)
    return Agreement(both, len(one) - both, len(two) - both, len(ops) * (len(ops) - 1) // 2)


def together(kernels: Iterable[Collection[int]], among: set[int]) -> set[tuple[int, int]]:
    """The pairs of ops that share a kernel."""
    return {pair for kernel in kernels for pair in combinations(sorted(among.intersection(kernel)), 2)}
