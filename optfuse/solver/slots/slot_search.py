"""The best partition of a block into a small count of kernels: one count after another, each as a slot model."""

from __future__ import annotations

from dataclasses import dataclass

from ortools.sat.python import cp_model

from optfuse.problem.instance import Instance
from optfuse.problem.legality import is_legal
from optfuse.problem.op_masks import bits, mask_of
from optfuse.solver.columns.pricing import pricer
from optfuse.solver.control.clock import WALL, Clock, within
from optfuse.solver.control.native import configured, run
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.reduce.size_limits import Kernel, fewest_kernels
from optfuse.solver.slots.slot_model import (
    SlotModel,
    Slots,
    add_separator,
    links_of,
    modes_of,
    pieces_of,
    separators_of,
    slot_model,
)

#: The most variables that say where ops are, and the most solves for one number of kernels.
MOST_PLACES = 20_000
MOST_ROUNDS = 40
#: How near to its bound a solve comes before kernels that fall apart are mended.
FIRST_GAP = 0.02
#: What it takes to state one such variable with all that hangs on it, roughly.
PLACE_SECONDS = 1e-4


@dataclass(frozen=True, slots=True)
class SlotResult:
    """The best partition known, its cost, and a bound on all of the block."""

    kernels: tuple[Kernel, ...]
    cost: int
    bound: int


def fits_slot_model(problem: Instance) -> bool:
    """Whether the model can say the block: no variants and no rules, one device, and launches that are equally dear."""
    rules = problem.rules
    ruled = rules.fuse or rules.no_fuse or rules.single_kernel or rules.barrier
    alike = len({op.device for op in problem.ops}) == 1 and not any(op.launch_ps for op in problem.ops)
    return not (problem.variants or ruled) and alike


def solve_by_kernel_count(
    problem: Instance,
    start: tuple[Kernel, ...],
    bound: int,
    memory: int,
    options: SolveOptions,
    deadline: float,
    clock: Clock = WALL,
) -> SlotResult:
    """The cheapest partition of a plain block, searched by its number of kernels.

    Args:
        start: A legal partition; the result costs no more.
        bound, memory: What every partition costs at least, and what it costs without its launches.
        deadline: A time of ``clock``.
    """
    launch = problem.devices[problem.ops[0].device].launch_ps
    prices = pricer(problem)
    best = SlotResult(start, sum(prices.price(mask_of(ops), scheme) for ops, scheme in start), bound)
    modes = modes_of(problem)
    places = sum(mode.ops.bit_count() for mode in modes)
    floors: list[int] = []
    count = fewest_kernels(problem)
    while count * launch + memory < best.cost:
        left = count * places <= MOST_PLACES and clock.now() + PLACE_SECONDS * count * places < deadline
        if not left:
            floors.append(count * launch + memory)
            break
        model = slot_model(problem, count, modes)
        clock.spend(PLACE_SECONDS * count * places)
        model.cp.add(model.objective >= max(bound, count * launch + memory))
        last = (count + 1) * launch + memory >= best.cost
        until = deadline if last else within(clock, deadline, 0.8)
        best, floor = _with_slots(model, best, options, until, clock)
        floors.append(max(floor, count * launch + memory))
        count += 1
    return SlotResult(best.kernels, best.cost, min(best.cost, max(bound, min(floors, default=best.cost))))


def _with_slots(
    model: SlotModel,
    best: SlotResult,
    options: SolveOptions,
    deadline: float,
    clock: Clock,
) -> tuple[SlotResult, int]:
    """The best partition, if one of so many kernels is cheaper; and what any of so many kernels costs at least."""
    floor, gap = 0, FIRST_GAP
    for _ in range(MOST_ROUNDS):
        model.cp.add(model.objective < best.cost)
        solver = configured(options, clock, deadline)
        # The bound comes from the relaxation: one worker with all of it is ahead of two with a part of it each.
        solver.parameters.num_workers = 1
        solver.parameters.linearization_level = 2
        solver.parameters.relative_gap_limit = gap
        status = run(solver, model.cp, clock)
        if status == cp_model.INFEASIBLE:
            return best, best.cost
        floor = max(floor, int(-(-solver.best_objective_bound // 1)))
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            break
        slots = model.slots(solver)
        best = _better(model.problem, slots, best)
        if floor >= best.cost:
            break
        separators = separators_of(model.problem, slots) if model.problem.limits.connected else []
        if clock.now() >= deadline or (not separators and status == cp_model.OPTIMAL and gap == 0.0):
            # The rest of the gap is cost that the slot model leaves out.
            break
        gap = FIRST_GAP if separators else 0.0
        for separator in separators:
            add_separator(model, separator)
    return best, min(floor, best.cost)


def _better(problem: Instance, slots: Slots, best: SlotResult) -> SlotResult:
    """The slots as kernels, each that falls apart as several, if they are legal and cheaper than what is known."""
    kernels: list[Kernel] = []
    for mask, scheme in slots:
        pieces = pieces_of(links_of(problem, scheme), mask) if problem.limits.connected else [mask]
        kernels += [(tuple(bits(piece)), scheme) for piece in pieces]
    cost = sum(pricer(problem).price(mask_of(ops), scheme) for ops, scheme in kernels)
    if cost < best.cost and all(is_legal(problem, ops, scheme) for ops, scheme in kernels):
        return SlotResult(tuple(kernels), cost, best.bound)
    return best
