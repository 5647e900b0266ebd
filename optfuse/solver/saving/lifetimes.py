"""Lifetimes of the values that a training step saves or recomputes, by level of its forward and backward halves.

The problem of ``saving.choice`` in fewer values: those that may take room. A value that a loop computes from no more
bytes than it has is never stored but for a library call that reads it, so that its readers depend on what it is
computed from; small values are always kept. Time is the level of a half: the number of library calls on a longest path.

Which values are saved decides all else: what is needed at a level and neither in memory nor cheap to compute in
registers is computed again at that level, with what it is computed from, and stays until its last reader has run. A
value that loops need at one level alone, as the mask of an activation, is not written for them: they compute it. The
graph has one node for each value, so that none is computed a third time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from optfuse.solver.saving.choice import ForwardValue, uses

#: Values of fewer bytes, or of fewer than this share of the largest one, are always kept: together they are small, and
#: launches to compute them again cost more.
SMALL_BYTES, SMALL_SHARE = 1 << 18, 64
#: More than any step takes, in picoseconds: the cost of a choice that needs what cannot be computed again.
IMPOSSIBLE = 1 << 60


@dataclass(frozen=True, slots=True)
class Stored:
    """A value that may be saved, or recomputed into memory.

    Attributes:
        value: Its position among the forward values.
        inputs: The stored values, by position, that computing it again needs.
        maker: What computes it, by a number: values of one library call that yields several have one.
        level: Its level in the forward half.
        bytes, save_ps, read_ps: As of the forward value.
        again_ps: Picoseconds of its maker, and of writing it; None if it cannot be computed again.
        library: Whether its inputs must be in memory.
        cheap: Whether loops compute it in registers: from no more bytes than it has, or at the one level that needs it.
    """

    value: int
    inputs: tuple[int, ...]
    maker: int
    level: int
    bytes: int
    save_ps: int
    read_ps: int
    again_ps: int | None
    library: bool
    cheap: bool


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """The stored values of a step, and by level of its backward half those that library calls and loops need.

    ``levels`` counts those of the forward half, ``forward_levels``, and those of the backward half after them. Values
    of fewer than ``small`` bytes are none of its own.
    """

    small: int
    forward_levels: int
    stored: Sequence[Stored]
    called: Sequence[Sequence[int]]
    looped: Sequence[Sequence[int]]

    @classmethod
    def of(cls, values: Sequence[ForwardValue]) -> Lifetimes:
        """The problem of the forward values of a step."""
        return _Contraction(values).lifetimes()

    @property
    def levels(self) -> int:
        """The number of levels of both halves."""
        return self.forward_levels + len(self.called)

    def outcome(self, saved: Iterable[int]) -> Outcome:
        """What follows from saving some of the stored values."""
        return _Run(self, saved).outcome()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Picoseconds that a choice costs, and by level the bytes of stored values that are in memory.

    In the forward half these are those that are saved.
    """

    cost_ps: int
    live: Sequence[int]

    def excess(self, beside: Sequence[int], cap: int) -> int:
        """The bytes above the cap, of all levels together; ``beside``: by level what else is in memory."""
        return sum(mine + other - cap for mine, other in zip(self.live, beside, strict=True) if mine + other > cap)


class _Run:
    """A walk through the levels of the backward half that recomputes what is missing."""

    def __init__(self, problem: Lifetimes, saved: Iterable[int]) -> None:
        self.problem, self.saved = problem, frozenset(saved)
        self.start: dict[int, int] = dict.fromkeys(self.saved, 0)
        self.last: dict[int, int] = {}
        self.reads: set[tuple[int, int]] = set()
        self.made: set[int] = set()
        self.cost = sum([problem.stored[k].save_ps for k in self.start])

    def outcome(self) -> Outcome:
        problem = self.problem
        for level, (called, looped) in enumerate(zip(problem.called, problem.looped, strict=True)):
            self._fetch([(k, True) for k in called], level)
            self._fetch([(k, False) for k in looped], level)
        change = [0] * (problem.levels + 1)
        first = problem.forward_levels
        for k, end in self.last.items():
            one = problem.stored[k]
            change[one.level if k in self.saved else first + self.start[k]] += one.bytes
            change[first + end + 1] -= one.bytes
        live, now = [], 0
        for one in change[:-1]:
            now += one
            live.append(now)
        return Outcome(self.cost + sum(problem.stored[k].read_ps for k, _ in self.reads), live)

    def _fetch(self, wanted: list[tuple[int, bool]], level: int) -> None:
        """Provide values at a level, each in memory or, where that will do and is cheap, in registers."""
        while wanted:
            k, in_memory = wanted.pop()
            one = self.problem.stored[k]
            if not in_memory:
                if one.cheap and k not in self.start:
                    wanted += [(u, False) for u in one.inputs]
                    continue
                self.reads.add((k, level))
            self.last[k] = level
            if k in self.start:
                continue
            self.start[k] = level
            if one.again_ps is None:
                self.cost += IMPOSSIBLE
            elif one.maker not in self.made:
                self.made.add(one.maker)
                self.cost += one.again_ps
            wanted += [(u, one.library) for u in one.inputs]


class _Contraction:
    """The stored values of a step, and on which of them each of its values depends."""

    def __init__(self, values: Sequence[ForwardValue]) -> None:
        self.values = values
        self.root: list[int | None] = []  # what a view is a view of; None: of what the step is given
        for k, value in enumerate(values):
            self.root.append(k if not value.view else self.root[value.inputs[0]] if value.inputs else None)
        sources = [{r for u in value.inputs if (r := self.root[u]) is not None} for value in values]
        for_calls: set[int | None] = {
            u for value, mine in zip(values, sources, strict=True) if value.library for u in mine
        }
        for_calls |= {self.root[k] for k, value in enumerate(values) if value.called is not None}
        self.stored: list[Stored] = []
        self.place: dict[int, int] = {}
        self.level, self.uses = forward_levels(values), uses(values)
        self.small = min(SMALL_BYTES, max((value.bytes or 0 for value in values), default=0) // SMALL_SHARE)
        self.needs: list[frozenset[int]] = []
        for k, (value, mine) in enumerate(zip(values, sources, strict=True)):
            through = frozenset[int]().union(*(self._needed(u) for u in mine))
            small = value.bytes is not None and value.bytes < self.small
            self.needs.append(frozenset() if small else through)
            if value.view or value.bytes is None or small:
                continue
            one = self._stored(k, value, through)
            expands = one.cheap and self._bytes(one.inputs) <= one.bytes
            if one.library or one.again_ps is None or k in for_calls or not expands:
                self.place[k] = len(self.stored)
                self.stored.append(one)

    def _stored(self, k: int, value: ForwardValue, inputs: frozenset[int]) -> Stored:
        part_of = next((u for u in value.inputs if self.values[u].bytes is None and not self.values[u].view), None)
        again = value.again_ps
        if part_of is not None and again is not None:
            whole = self.values[part_of].again_ps
            again = None if whole is None else max(again, whole)
        short = len(self.uses[k].levels) <= 1 or self._bytes(inputs) <= (value.bytes or 0)
        cheap = not value.library and again == 0 and short
        if again is not None and not value.library:
            again += value.write_ps
        maker = k if part_of is None else part_of
        facts = (value.bytes or 0, value.save_ps, value.read_ps, again, value.library, cheap)
        return Stored(k, tuple(sorted(inputs)), maker, self.level[k], *facts)

    def _bytes(self, some: Iterable[int]) -> int:
        return sum(self.stored[u].bytes for u in some)

    def _needed(self, k: int) -> frozenset[int]:
        return frozenset({self.place[k]}) if k in self.place else self.needs[k]

    def lifetimes(self) -> Lifetimes:
        called: dict[int, set[int]] = {}
        looped: dict[int, set[int]] = {}
        for k, value in enumerate(self.values):
            root = self.root[k]
            if root is None:
                continue
            for level in value.looped:
                looped.setdefault(level, set()).update(self._needed(root))
            if root in self.place:
                for level in (value.called, value.last_called):
                    if level is not None:
                        called.setdefault(level, set()).add(self.place[root])
        count = 1 + max((*called, *looped), default=0)

        def by_level(some: Mapping[int, set[int]]) -> tuple[tuple[int, ...], ...]:
            return tuple(tuple(sorted(some.get(level, ()), reverse=True)) for level in range(count))

        forward = 1 + max(self.level, default=0)
        return Lifetimes(self.small, forward, tuple(self.stored), by_level(called), by_level(looped))


def forward_levels(values: Sequence[ForwardValue]) -> list[int]:
    """By value, its level in the forward half."""
    levels: list[int] = []
    for value in values:
        levels.append(max((levels[u] + values[u].library for u in value.inputs), default=0))
    return levels
