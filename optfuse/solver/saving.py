"""Which values of a training step's forward graph are saved for the backward graph, and which are computed again there.

A constraint model over values, not kernels: its times are those of ops alone, so it proposes, and solving the two
graphs that follow from a proposal prices it. Per value v that the forward graph computes:

    variables    save(v), again(v) in {0, 1}; there(v) = save(v) + again(v), at most 1: the backward graph has it
    needed       there(v) = 1 for what the backward graph reads
    again        again(v) <= there(u) for each value u that v is computed from
    read         read(u) >= save(u) + again(v) - 1 for each loop v that reads u in the forward graph
    memory       sum of bytes(v) * save(v) <= cap
    objective    least sum of save_ps(v) * save(v) + again_ps(v) * again(v) + read_ps(v) * read(v), then of the bytes

With the times of library calls alone as ``again_ps``, and nothing as ``save_ps``, the model's bound is one on what any
choice within the cap adds to the step: every choice has these calls in its backward graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ortools.sat.python import cp_model

from optfuse.solver.control.clock import Clock
from optfuse.solver.control.native import configured, run
from optfuse.solver.control.options import SolveOptions

#: Prices per byte that are tried at most.
MOST_PRICES = 24
#: A picosecond in the objective: prices per byte are parts of it, and bytes break ties below it.
SCALE = 1024


@dataclass(frozen=True, slots=True)
class ForwardValue:
    """A value that the forward graph computes.

    Attributes
    ----------
    inputs
        The values (by position) that it is computed from; what the graph is given is always there.
    bytes
        What saving it keeps in memory; 0 for what stays there in any case; None if it cannot be saved: a view, a tuple.
    save_ps
        Picoseconds that saving it adds: the forward graph writes it, the backward graph reads it.
    again_ps
        Picoseconds of computing it again from its inputs; None if it must not be (a random draw, a collective).
    read_ps
        Picoseconds that it takes to read it, where it is saved and a loop among ``loops`` is computed again from it.
    loops
        The loops (by position) that read it, also through views.
    library
        Whether a library call computes it, which takes its time in every schedule.
    """

    name: str
    inputs: tuple[int, ...]
    bytes: int | None
    save_ps: int = 0
    again_ps: int | None = 0
    library: bool = False
    read_ps: int = 0
    loops: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SavingProblem:
    """The values of a forward graph in program order, and which of them the backward graph reads."""

    values: tuple[ForwardValue, ...]
    needed: frozenset[int]


@dataclass(frozen=True, slots=True)
class Saving:
    """A choice: values saved and values computed again, by position, with what it costs and a bound on every choice's.

    ``bytes`` are those saved. ``proven``: no choice is cheaper under the model.
    """

    saved: frozenset[int]
    again: frozenset[int]
    cost_ps: int
    bound_ps: int
    bytes: int
    proven: bool


def choose_saving(
    problem: SavingProblem,
    cap: int | None,
    options: SolveOptions,
    clock: Clock,
    deadline: float,
    gap: float = 0.0,
) -> Saving | None:
    """The cheapest choice that keeps at most ``cap`` bytes (None: any number); None if none was found.

    Under a cap the layers of a model compete for the same bytes, and choices that differ in which layer gets them cost
    the same, which a search does not tell apart soon. A price per byte decides for all of them at once: its best
    choices without the cap are a start, and their costs less the price of the cap bound every choice within it.

    ``deadline``: the clock's time by which the search ends with the best choice found. It ends before that where the
    choice is within ``gap`` of the bound.
    """
    free = _solve(problem, None, 0, options, clock, deadline)
    if free is None or cap is None or free.bytes <= cap:
        return free
    start, bound = _by_price(problem, cap, options, clock, deadline)
    if start is not None and start.cost_ps - bound <= gap * start.cost_ps:
        return replace(start, bound_ps=min(bound, start.cost_ps), proven=bound >= start.cost_ps)
    found = _solve(problem, cap, 0, options, clock, deadline, start, gap)
    best = min((one for one in (start, found) if one is not None), key=lambda one: one.cost_ps, default=None)
    if best is None:
        return None
    bound = max(bound, 0 if found is None else found.bound_ps)
    return replace(best, bound_ps=min(bound, best.cost_ps), proven=bound >= best.cost_ps)


def _by_price(
    problem: SavingProblem, cap: int, options: SolveOptions, clock: Clock, deadline: float
) -> tuple[Saving | None, int]:
    """The cheapest choice within the cap that some price per byte makes best, and the bound of the best price."""
    low, high = 0, SCALE
    found, bound = None, 0
    for _ in range(MOST_PRICES):
        price = high if found is None else (low + high) // 2
        one = _solve(problem, cap, price, options, clock, deadline)
        if one is None:
            break
        bound = max(bound, one.bound_ps)
        if one.bytes <= cap:
            found = one if found is None or one.cost_ps < found.cost_ps else found
            high = price
        else:
            low, high = price, high if found is not None else 8 * high
        if found is not None and high - low <= 1:
            break
    return found, bound


def _solve(
    problem: SavingProblem,
    cap: int | None,
    price: int,
    options: SolveOptions,
    clock: Clock,
    deadline: float,
    start: Saving | None = None,
    gap: float = 0.0,
) -> Saving | None:
    """The cheapest choice within ``cap``; with a price, of the least cost plus ``price`` / SCALE picoseconds a byte.

    The latter may be above the cap; its bound is one on every choice within it.
    """
    model = cp_model.CpModel()
    save, again, read = _variables(model, problem)
    sizes = [value.bytes or 0 for value in problem.values]
    if cap is not None and not price:
        model.add(cp_model.LinearExpr.weighted_sum(save, sizes) <= cap)
    times = [value.save_ps for value in problem.values], [value.again_ps or 0 for value in problem.values]
    # of choices that cost the same one that keeps fewer bytes, as shares of all that add up to less than a picosecond
    total = max(1, sum(sizes))
    shares = [size * (SCALE - 1) // total for size in sizes]
    weights = [SCALE * time + price * size + part for time, size, part in zip(times[0], sizes, shares, strict=True)]
    weights += [SCALE * time for time in (*times[1], *(value.read_ps for value in problem.values))]
    model.minimize(cp_model.LinearExpr.weighted_sum([*save, *again, *read], weights))
    if start is not None:
        for k in range(len(problem.values)):
            model.add_hint(save[k], k in start.saved)
            model.add_hint(again[k], k in start.again)
    solver = configured(options, clock, deadline)
    solver.parameters.relative_gap_limit = gap
    status = run(solver, model, clock)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    saved = frozenset(k for k, variable in enumerate(save) if solver.value(variable))
    made = frozenset(k for k, variable in enumerate(again) if solver.value(variable))
    cost = sum(times[0][k] for k in saved) + sum(times[1][k] for k in made)
    cost += sum(problem.values[k].read_ps for k in saved if not made.isdisjoint(problem.values[k].loops))
    bound = max(0, (math.floor(solver.best_objective_bound) - price * (cap or 0)) // SCALE)
    return Saving(saved, made, cost, bound, sum(sizes[k] for k in saved), status == cp_model.OPTIMAL)


def least_bytes(problem: SavingProblem, options: SolveOptions, clock: Clock, deadline: float) -> int | None:
    """The fewest bytes that any choice keeps, or a bound below them if the time runs out; None if none is possible."""
    by_bytes = [
        replace(value, save_ps=value.bytes or 0, again_ps=_if_possible(value, 0), read_ps=0) for value in problem.values
    ]
    found = choose_saving(replace(problem, values=tuple(by_bytes)), None, options, clock, deadline)
    return None if found is None else found.bound_ps


def of_library_calls(problem: SavingProblem) -> SavingProblem:
    """The problem whose bound holds for every schedule: what takes time is library calls that run again."""
    values = (
        replace(value, save_ps=0, again_ps=value.again_ps if value.library else _if_possible(value, 0), read_ps=0)
        for value in problem.values
    )
    return replace(problem, values=tuple(values))


def all_to_be_saved(problem: SavingProblem) -> SavingProblem:
    """The problem whose best choice computes the fewest values again."""
    values = (replace(value, save_ps=0, again_ps=_if_possible(value, 1), read_ps=0) for value in problem.values)
    return replace(problem, values=tuple(values))


def _if_possible(value: ForwardValue, ps: int) -> int | None:
    return None if value.again_ps is None else ps


def _variables(
    model: cp_model.CpModel, problem: SavingProblem
) -> tuple[Sequence[cp_model.IntVar], Sequence[cp_model.IntVar], Sequence[cp_model.IntVar]]:
    """save(v), again(v) and read(v), with every constraint but the cap."""
    save = [model.new_bool_var(f"save {value.name}") for value in problem.values]
    again = [model.new_bool_var(f"again {value.name}") for value in problem.values]
    read = [model.new_bool_var(f"read {value.name}") for value in problem.values]
    for k, value in enumerate(problem.values):
        if value.bytes is None:
            model.add(save[k] == 0)
        if value.again_ps is None:
            model.add(again[k] == 0)
        if k in problem.needed:
            model.add_exactly_one(save[k], again[k])
        else:
            model.add_at_most_one(save[k], again[k])
        for u in value.inputs:
            model.add_bool_or(again[k].negated(), save[u], again[u])
        for v in value.loops if value.read_ps else ():
            model.add_bool_or(read[k], save[k].negated(), again[v].negated())
    return save, again, read
