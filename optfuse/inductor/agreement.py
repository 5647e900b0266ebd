"""How similar two partitions of ops into kernels are, measured by the pairs of ops that share a kernel."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True, slots=True)
class Agreement:
    """Counts of pairs of ops that share a kernel in ``both`` partitions, or in one only; ``pairs`` counts all pairs."""

    both: int
    first: int
    second: int
    pairs: int

    @property
    def jaccard(self) -> float:
        """Jaccard index: pairs that share a kernel in both, divided by those that do in either; 1.0 if none do."""
        either = self.both + self.first + self.second
        return self.both / either if either else 1.0

    @property
    def rand(self) -> float:
        """Rand index: the share of all pairs on which both partitions agree. Most pairs share no kernel."""
        return 1.0 - (self.first + self.second) / self.pairs if self.pairs else 1.0


def agreement(first: Iterable[Collection[int]], second: Iterable[Collection[int]], among: Collection[int]) -> Agreement:
    """Compare two partitions, restricted to the ops of ``among``. An op may be in several kernels of a partition."""
    ops = set(among)
    one, two = pairs_in_kernels(first, ops), pairs_in_kernels(second, ops)
    both = len(one & two)
    return Agreement(both, len(one) - both, len(two) - both, len(ops) * (len(ops) - 1) // 2)


def pairs_in_kernels(kernels: Iterable[Collection[int]], among: set[int]) -> set[tuple[int, int]]:
    """The pairs of ops that share a kernel."""
    return {pair for kernel in kernels for pair in combinations(sorted(among.intersection(kernel)), 2)}
