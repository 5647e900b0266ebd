"""The linear relaxation of the master problem, and the bound that it proves.

GLOP works in floating point, so its bound is only a hint. The proof is in integers: its dual prices are rounded to
multiples of 1/``UNIT`` picosecond and lowered where a candidate would be overpaid; then no candidate costs less than
the prices of what it covers, and the sum of the prices is a lower bound on every solution.

Some columns enter the program at first; those of negative reduced cost follow until there are none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ortools.linear_solver import pywraplp

from optfuse.problem.op_masks import bits
from optfuse.solver.columns.candidates import Candidate
from optfuse.solver.control.clock import WALL, Clock
from optfuse.solver.control.native import interruptibly
from optfuse.solver.master.master import CycleCut, Master

T = TypeVar("T", int, float)

UNIT = 1 << 16
#: Columns in the first program, and columns added a round.
FIRST_COLUMNS = 3000
MORE_COLUMNS = 1500
#: Reduced costs above this (relative to the dearest candidate) count as nonnegative while columns are added.
TOLERANCE = 1e-9
#: A program of fewer columns is solved at once, without a thread that can be interrupted.
SMALL_PROGRAM = 500
#: Rough seconds of a simplex iteration for each column, and of pricing a column.
ITERATION_SECONDS = 2e-8
PRICING_SECONDS = 5e-7
#: Masks are spelled out in parts of so many bits, each distinct part once.
PART_BITS = 12
PART = (1 << PART_BITS) - 1


@dataclass(frozen=True, slots=True)
class Relaxation:
    """``values`` are the candidates' fractions. ``bound`` is proven, in picoseconds.

    ``slack`` is each candidate's reduced cost, at least 0, in 1/``UNIT`` picoseconds; ``level`` is the exact sum of
    prices in the same unit. A solution with candidate k costs at least level + slack[k]. ``prices`` are the dual prices
    of the covers.
    """

    values: tuple[float, ...]
    bound: int
    slack: tuple[int, ...]
    level: int
    prices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Prices:
    """Dual prices: of covers, and of cuts (never positive)."""

    covers: list[float]
    cuts: list[float]


class _Rows:
    """The coefficients of each candidate's column: 1 in the rows of its covers, its weight in those of cuts."""

    def __init__(self, master: Master) -> None:
        self._by_atom: dict[int, list[int]] = {}
        for number, cover in enumerate(master.covers):
            self._by_atom.setdefault(cover.atom, []).append(number)
        self._parts: dict[tuple[int, int], tuple[int, ...]] = {}
        self.covers: list[tuple[int, ...]] = []
        self.masks: list[int] = []
        self.costs: list[int] = []
        self.cuts: dict[int, list[tuple[int, int]]] = {}
        self._count = 0
        self.extend(master.candidates)

    def extend(self, candidates: Iterable[Candidate]) -> None:
        """Append the columns of some candidates, before any cut is added."""
        parts = self._parts
        for candidate in candidates:
            mask = candidate.mask
            self.masks.append(mask)
            self.costs.append(candidate.cost)
            rest, place, found = mask, 0, ()
            while rest:
                empty = ((rest & -rest).bit_length() - 1) // PART_BITS * PART_BITS
                rest >>= empty
                place += empty
                key = (rest & PART, place)
                part = parts.get(key)
                if part is None:
                    numbers = (self._by_atom[atom + place] for atom in bits(rest & PART))
                    part = parts[key] = tuple(number for several in numbers for number in several)
                found += part
                rest >>= PART_BITS
                place += PART_BITS
            self.covers.append(found)

    def add_cut(self, cut: CycleCut) -> dict[int, int]:
        """Add a cut; returns the nonzero weights of its row by column."""
        touches = cut.touches
        weights = {
            column: weight for column, mask in enumerate(self.masks) if mask & touches and (weight := cut.weight(mask))
        }
        for column, weight in weights.items():
            self.cuts.setdefault(column, []).append((self._count, weight))
        self._count += 1
        return weights

    def reduced_costs(self, covers: Sequence[T], cuts: Sequence[T], unit: T) -> list[T]:
        """The reduced cost of each candidate, in ``unit`` parts of a picosecond."""
        price = covers.__getitem__
        found: list[T] = [
            cost * unit - sum(map(price, mine)) for cost, mine in zip(self.costs, self.covers, strict=True)
        ]
        for column, mine in self.cuts.items():
            found[column] -= sum(weight * cuts[number] for number, weight in mine)
        return found


class LinearMaster:
    """The linear relaxation of a master problem, with columns and cuts added as they are needed."""

    def __init__(
        self,
        master: Master,
        first: Iterable[int],
        clock: Clock = WALL,
        columns: tuple[int, int] = (FIRST_COLUMNS, MORE_COLUMNS),
    ) -> None:
        """``first`` are candidates worth having from the start; ``columns``: how many at first, and more a round."""
        self.master = master
        self._clock = clock
        self._rows = _Rows(master)
        self._cuts: list[CycleCut] = []
        self._tolerance = TOLERANCE * max((candidate.cost for candidate in master.candidates), default=0)
        self._program = _Program(master, self._rows, clock)
        few, self._more = columns
        self._program.add(_first_columns(master, first, few))
        self.add_cuts(master.cuts)

    def extend(self, candidates: Sequence[Candidate]) -> None:
        """Add candidates to the problem and to the program, before any cut."""
        first = len(self.master.candidates)
        self.master = replace(self.master, candidates=(*self.master.candidates, *candidates))
        self._program.master = self.master
        self._rows.extend(candidates)
        self._program.add(range(first, len(self.master.candidates)))

    def add_cuts(self, cuts: Iterable[CycleCut]) -> None:
        """Add cuts to the program."""
        for cut in cuts:
            self._cuts.append(cut)
            self._program.add_cut(cut, self._rows.add_cut(cut))

    def relax(self, deadline: float) -> Relaxation:
        """The relaxation; at ``deadline``, a time of the clock, a weaker one that is still a bound."""
        program = self._program
        prices = program.solve(deadline)
        while prices is not None and self._clock.now() < deadline:
            self._clock.spend(PRICING_SECONDS * len(self.master.candidates))
            reduced = self._rows.reduced_costs(prices.covers, prices.cuts, 1.0)
            waiting = [
                (amount, column)
                for column, amount in enumerate(reduced)
                if amount < -self._tolerance and column not in program.columns
            ]
            if not waiting:
                break
            waiting.sort()
            program.add(column for _, column in waiting[: self._more])
            found = program.solve(deadline)
            if found is None:
                break
            prices = found
        return _certify(self.master, self._cuts, self._rows, prices, program.values())


def _first_columns(master: Master, first: Iterable[int], few: int) -> list[int]:
    if len(master.candidates) <= few:
        return list(range(len(master.candidates)))
    chosen = dict.fromkeys(first)
    for column, candidate in enumerate(master.candidates):
        if not candidate.mask & candidate.mask - 1:
            chosen[column] = None
    stride = len(master.candidates) // few
    chosen.update(dict.fromkeys(range(0, len(master.candidates), stride)))
    return list(chosen)


class _Program:
    """The linear program in GLOP, with some of the candidates as columns."""

    def __init__(self, master: Master, rows: _Rows, clock: Clock) -> None:
        self.master, self.rows, self.clock = master, rows, clock
        self.solver: pywraplp.Solver = pywraplp.Solver.CreateSolver("GLOP")
        self.columns: dict[int, pywraplp.Variable] = {}
        self.objective = self.solver.Objective()
        self.objective.SetMinimization()
        infinity = self.solver.infinity()
        alternatives = [self.solver.NumVar(0, infinity, "") for _ in range(master.alternatives)]
        self.covers = [_cover_row(self.solver, cover.alternatives, alternatives) for cover in master.covers]
        for numbers in master.variants:
            row = self.solver.Constraint(1, 1)
            for number in numbers:
                row.SetCoefficient(alternatives[number], 1)
        self.cuts: list[pywraplp.Constraint] = []
        self.found: tuple[tuple[int, float], ...] = ()

    def add(self, columns: Iterable[int]) -> None:
        """Add the columns of candidates."""
        infinity = self.solver.infinity()
        for column in columns:
            variable = self.solver.NumVar(0, infinity, "")
            self.columns[column] = variable
            self.objective.SetCoefficient(variable, self.master.candidates[column].cost)
            for number in self.rows.covers[column]:
                self.covers[number].SetCoefficient(variable, 1)
            for number, weight in self.rows.cuts.get(column, ()):
                self.cuts[number].SetCoefficient(variable, weight)

    def add_cut(self, cut: CycleCut, weights: Mapping[int, int]) -> None:
        """Add the row of a cut."""
        row = self.solver.Constraint(-self.solver.infinity(), cut.limit)
        self.cuts.append(row)
        for column, weight in weights.items():
            if column in self.columns:
                row.SetCoefficient(self.columns[column], weight)

    def solve(self, deadline: float) -> _Prices | None:
        """The dual prices of an optimum; None when there was no time to find one."""
        left = int(1000 * (deadline - self.clock.now()))
        if left <= 0:
            return None
        if not self.clock.deterministic:
            self.solver.SetTimeLimit(left)
        if len(self.columns) < SMALL_PROGRAM:
            done = self.solver.Solve() == pywraplp.Solver.OPTIMAL
        else:
            done = interruptibly(self.solver.Solve, self.solver.InterruptSolve, self.clock) == pywraplp.Solver.OPTIMAL
        self.clock.spend(ITERATION_SECONDS * self.solver.iterations() * len(self.columns))
        if not done:
            return None
        self.found = tuple((column, variable.solution_value()) for column, variable in self.columns.items())
        return _Prices([row.dual_value() for row in self.covers], [min(0.0, row.dual_value()) for row in self.cuts])

    def values(self) -> tuple[float, ...]:
        """The fraction of every candidate in the last optimum, 0 for those outside the program."""
        values = [0.0] * len(self.master.candidates)
        for column, value in self.found:
            values[column] = value
        return tuple(values)


def _cover_row(
    solver: pywraplp.Solver, numbers: tuple[int, ...] | None, alternatives: Sequence[pywraplp.Variable]
) -> pywraplp.Constraint:
    if numbers is None:
        return solver.Constraint(1, 1)
    row = solver.Constraint(0, 0)
    for number in numbers:
        row.SetCoefficient(alternatives[number], -1)
    return row


def _certify(
    master: Master, cuts: Sequence[CycleCut], rows: _Rows, prices: _Prices | None, values: tuple[float, ...]
) -> Relaxation:
    """The relaxation's certificate: prices rounded, lowered until no reduced cost is negative, and summed exactly."""
    if prices is None:
        prices = _Prices([0.0] * len(master.covers), [0.0] * len(cuts))
    covers = [round(price * UNIT) for price in prices.covers]
    cut_prices = [min(0, round(price * UNIT)) for price in prices.cuts]
    slack = rows.reduced_costs(covers, cut_prices, UNIT)
    overpaid = [column for column, amount in enumerate(slack) if amount < 0]
    for column in overpaid:
        excess = sum(covers[number] for number in rows.covers[column]) - master.candidates[column].cost * UNIT
        excess += sum(weight * cut_prices[number] for number, weight in rows.cuts.get(column, ()))
        covers[rows.covers[column][0]] -= max(0, excess)
    if overpaid:
        slack = rows.reduced_costs(covers, cut_prices, UNIT)
    level = sum(price for cover, price in zip(master.covers, covers, strict=True) if cover.alternatives is None) + sum(
        price * cut.limit for cut, price in zip(cuts, cut_prices, strict=True)
    )
    level += _variant_prices(master, covers)
    return Relaxation(values, -(-level // UNIT), tuple(slack), level, tuple(covers))


def _variant_prices(master: Master, covers: Sequence[int]) -> int:
    """The sum over variants of the least price of an alternative's covers: the dual price of each variant's row."""
    worth = [0] * master.alternatives
    for cover, price in zip(master.covers, covers, strict=True):
        for number in cover.alternatives or ():
            worth[number] += price
    return sum(min(worth[number] for number in numbers) for numbers in master.variants)
