"""Solve an instance with many variants by local search over the chosen alternatives.

Presolve and repeated blocks work on an instance without variants, so each choice is solved in seconds. The search
proves nothing: its bound is the one that needs no search.
"""

from __future__ import annotations

from optfuse.errors import IllegalKernelError
from optfuse.problem.cost import default_writes
from optfuse.problem.instance import ALONE, Instance
from optfuse.problem.solution import Kernel, Solution
from optfuse.solver.baseline.greedy import greedy
from optfuse.solver.control.clock import WALL, Clock, within
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.reduce.blocks import find_blocks
from optfuse.solver.reduce.optional import optional_uses
from optfuse.solver.solve_blocks import CpsatOutcome, solve_cpsat
from optfuse.solver.strategies.variant_choice import NEVER_CHOSEN, Chosen, choose_greedily, decide, descend
from optfuse.solver.strategies.variant_enumeration import MOST_CHOICES, choice_count

#: Ops of the largest block that is one model with its variants.
JOINT_OPS = 40
#: The share of the time in which variants are decided by greedy's prices.
GREEDY_SHARE = 0.4


def solve_variants(
    instance: Instance,
    options: SolveOptions,
    warm: Solution,
    floor: int,
    deadline: float,
    clock: Clock = WALL,
    joint_ops: int = JOINT_OPS,
    most_choices: int = MOST_CHOICES,
) -> CpsatOutcome:
    """The cheapest partition found, variants included, and a bound.

    Blocks of up to ``joint_ops`` are one model with their variants, and those of up to ``most_choices`` combinations of
    calls and loops are solved for each. Where a block with variants is larger, alternatives are chosen by local search,
    and the bound is ``floor``, which needs no search.
    """
    open_groups = [group for group in find_blocks(instance) if _undecided(instance, group)]
    largest = max(map(len, open_groups), default=0)
    many = bool(optional_uses(instance)) and any(choice_count(instance, group) > MOST_CHOICES for group in open_groups)
    few = all(choice_count(instance, group) <= most_choices for group in open_groups)
    if (largest <= joint_ops and not many) or (few and all(_is_of_calls(instance, group) for group in open_groups)):
        return solve_cpsat(instance, options, warm, deadline, clock)
    chosen = choose(instance, options, deadline, clock)
    running = {op for ops, _ in chosen.kernels for op in ops}
    kernels = tuple(
        Kernel(ops, scheme, default_writes(instance, ops, scheme, running)) for ops, scheme in chosen.kernels
    )
    cost = chosen.cost
    if warm.objective < cost:
        kernels, cost = warm.kernels, warm.objective
    note = f"variants: decided class by class in {chosen.solves} solves; a block of {largest} ops is not decided as one"
    return CpsatOutcome(
        kernels=kernels,
        objective=cost,
        bound=min(floor, cost),
        proven=floor >= cost,
        blocks=0,
        unique_blocks=0,
        candidates=0,
        cuts=0,
        rounds=chosen.solves,
        given_up=(note,),
    )


def _is_of_calls(instance: Instance, group: tuple[int, ...]) -> bool:
    """Whether each variant of a block has an alternative that runs alone: its combinations are solved one by one."""
    inside = set(group)
    return all(
        any(offer.scheme == ALONE for op in variant.alternatives[0] for offer in instance.ops[op].offers)
        for variant in instance.variants
        if inside.intersection(variant.alternatives[0])
    )


def _undecided(instance: Instance, group: tuple[int, ...]) -> bool:
    inside = set(group)
    return any(inside & set(ops) for variant in instance.variants for ops in variant.alternatives)


def choose(instance: Instance, options: SolveOptions, deadline: float, clock: Clock = WALL) -> Chosen:
    """The alternatives found by local search: by the cost of greedy fusion first, then by the solver's."""
    start = choose_greedily(instance, within(clock, deadline, GREEDY_SHARE), clock)

    def solved(alternatives: tuple[int, ...]) -> Chosen:
        return _solved(instance, alternatives, options, deadline, clock)

    best = solved(start.alternatives)
    best = best if best.cost <= start.cost else start
    return descend(instance, best, solved, deadline, clock)


def _solved(
    instance: Instance, alternatives: tuple[int, ...], options: SolveOptions, deadline: float, clock: Clock
) -> Chosen:
    try:
        decided = decide(instance, alternatives)
        start = greedy(decided.instance)
    except IllegalKernelError:  # the rules leave no kernels for this choice
        return Chosen(alternatives, (), NEVER_CHOSEN, 1)
    outcome: CpsatOutcome = solve_cpsat(decided.instance, options, start, deadline, clock)
    kernels = tuple((decided.lifted(kernel), kernel.scheme) for kernel in outcome.kernels)
    return Chosen(alternatives, kernels, outcome.objective, 1)
