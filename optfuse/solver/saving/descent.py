"""Choices of what to save whose memory stays within a cap at each level of the backward graph, found by descent.

A move saves a value, drops it, exchanges it for another one nearby, or does so to all values that are alike in their
layers. A choice is judged by its cost and the bytes by which each level is above the cap. Where no move helps, some
values nearby are changed at random and the descent goes on from there.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from optfuse.solver.control.clock import Clock
from optfuse.solver.saving.lifetimes import Lifetimes

#: Picoseconds that a byte above the cap costs at a level: far more than computing it again.
BYTE_PS = 2_000
#: Values that are exchanged for each other stand at most so many places apart; random changes, at most so many.
NEAR, CHANGED = 12, 4


@dataclass(frozen=True, slots=True)
class Kept:
    """A choice: stored values that are saved, with its cost and the most bytes that are in memory at once."""

    saved: frozenset[int]
    cost_ps: int
    peak: int


def descend(
    problem: Lifetimes,
    beside: Sequence[int],
    cap: int,
    starts: Sequence[frozenset[int]],
    clock: Clock,
    most: int,
    seed: int = 0,
) -> Kept:
    """The cheapest choice found whose peak is at most ``cap``; if none was found, one that comes near.

    Args:
        beside: By level, the bytes in memory beside the stored values.
        starts: Choices to start from; what cannot be computed again is saved in any case.
        clock: Ends the search when it is stopped; the time does not count.
        most: Choices that are judged.
    """
    fixed = frozenset(k for k, one in enumerate(problem.stored) if one.again_ps is None)
    search = _Descent(problem, beside, cap, clock, most, random.Random(seed))
    climbed = [search.descent(start | fixed) for start in starts]
    best = min(climbed, key=lambda one: one[0])
    while search.free and not search.over:
        found = search.descent(search.disturbed(best[1]))
        best = min(best, found, key=lambda one: one[0])
    outcome = problem.outcome(best[1])
    return Kept(best[1], outcome.cost_ps, max(map(sum, zip(outcome.live, beside, strict=True)), default=0))


class _Descent:
    def __init__(
        self, problem: Lifetimes, beside: Sequence[int], cap: int, clock: Clock, most: int, chance: random.Random
    ) -> None:
        self.problem, self.beside, self.cap, self.clock, self.chance = problem, beside, cap, clock, chance
        self.left = most
        needed = {k for some in (*problem.called, *problem.looped) for k in some}
        needed |= {u for one in problem.stored for u in one.inputs}
        self.free = [k for k, one in enumerate(problem.stored) if one.again_ps is not None and k in needed]
        alike = defaultdict[tuple[object, ...], list[int]](list)
        for k in self.free:
            one = problem.stored[k]
            sizes = tuple(sorted(problem.stored[u].bytes for u in one.inputs))
            alike[one.bytes, one.again_ps, one.read_ps, one.library, sizes].append(k)
        self.classes = [frozenset(some) for some in alike.values() if len(some) > 1]

    @property
    def over(self) -> bool:
        return self.left <= 0 or self.clock.stopped

    def price(self, saved: frozenset[int]) -> int:
        """The cost with what the bytes above the cap are charged."""
        self.left -= 1
        outcome = self.problem.outcome(saved)
        return outcome.cost_ps + BYTE_PS * outcome.excess(self.beside, self.cap)

    def descent(self, saved: frozenset[int]) -> tuple[int, frozenset[int]]:
        """The choice after moves that make it cheaper, until none does, with its price."""
        now = _Current(saved, self.price(saved))
        while not self.over and any(self._tried(now, moves(now)) for moves in (self._alike, self._single, self._swaps)):
            pass
        return now.price, now.saved

    def disturbed(self, saved: frozenset[int]) -> frozenset[int]:
        """The choice with some values nearby changed."""
        at = self.chance.randrange(len(self.free))
        nearby = self.free[max(0, at - NEAR) : at + NEAR]
        return saved ^ frozenset(self.chance.sample(nearby, min(CHANGED, len(nearby))))

    def _tried(self, now: _Current, moves: Iterable[frozenset[int]]) -> bool:
        """Whether one of the moves, each the values that it changes, made the choice cheaper: all that do are made."""
        better = False
        for changed in moves:
            if self.over:
                break
            other = now.saved ^ changed
            if (price := self.price(other)) < now.price:
                now.saved, now.price, better = other, price, True
        return better

    def _alike(self, now: _Current) -> Iterator[frozenset[int]]:
        for some in self.classes:
            for changed in (some - now.saved, some & now.saved):
                if changed:
                    yield changed

    def _single(self, _: _Current) -> Iterator[frozenset[int]]:
        for k in self.chance.sample(self.free, len(self.free)):
            yield frozenset({k})

    def _swaps(self, now: _Current) -> Iterator[frozenset[int]]:
        for at in self.chance.sample(range(len(self.free)), len(self.free)):
            for other in self.free[at + 1 : at + 1 + NEAR]:
                if (self.free[at] in now.saved) != (other in now.saved):
                    yield frozenset({self.free[at], other})


@dataclass(slots=True)
class _Current:
    saved: frozenset[int]
    price: int
