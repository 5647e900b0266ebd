"""Solve one block: without the limits on a kernel's size if they do not bind, by its few kernels if they do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from optfuse.problem.instance import Instance
from optfuse.problem.legality import is_legal
from optfuse.solve.clock import WALL, Clock, within
from optfuse.solve.cpsat.attempt import (
    BlockResult,
    Partition,
    attempt,
    cost_of,
    listed,
    prepare,
    restarted,
    sampled,
)
from optfuse.solve.cpsat.blocks import LARGE_OPS, Shape
from optfuse.solve.cpsat.by_choice import solve_choices
from optfuse.solve.cpsat.few import few_kernels, is_plain
from optfuse.solve.cpsat.floor import floor_cost
from optfuse.solve.cpsat.limits import cut_to_size, fits, launches, without_launches, without_limits
from optfuse.solve.cpsat.parts import loosened, parts_bound
from optfuse.solve.cpsat.pricing import pricer
from optfuse.solve.greedy import greedy
from optfuse.solve.optional import optional_uses
from optfuse.solve.options import SolveOptions

#: The most kernels for which a block whose candidates cannot be listed is searched by their number.
MOST_SLOTS = 8
#: Large blocks are left as they are where a bound without search is as close as this.
CLOSE = 0.02


def solve_block(
    shape: Shape, warm: Partition, options: SolveOptions, deadline: float, clock: Clock = WALL
) -> BlockResult:
    """Solve a block. ``warm`` is a legal, acyclic partition of it: the result costs no more.

    Presolve needs to know that a kernel has room for one more. So the limits on a kernel's size are lifted first, and
    the block is solved as it is only if the answer breaks them: the bound holds either way.

    Raises:
        IllegalKernelError: When the rules leave an op without any kernel.
    """
    whole = shape.problem
    if len(whole.ops) == 1 and not whole.variants:
        return _single(whole)
    floor = floor_cost(whole)
    cost = cost_of(whole, warm)
    known = BlockResult(warm, cost, min(floor, cost))
    if clock.now() >= deadline:
        return known
    if optional_uses(whole):

        def solve(decided: Shape, start: Partition, until: float) -> BlockResult:
            return solve_block(decided, start, options, until, clock)

        return solve_choices(shape, warm, solve, deadline, clock)
    floor = max(floor, _floor_by_parts(shape, options, within(clock, deadline, 0.1), clock))
    known = BlockResult(warm, cost, min(floor, cost))
    if _is_close(whole, known):
        return known
    if len(whole.ops) > LARGE_OPS:
        known = restarted(whole, known, deadline, clock)
    roomy = without_limits(whole)
    if roomy is whole:
        return attempt(prepare(shape, whole, options, deadline, clock), known, deadline)
    return _limited(shape, roomy, known, options, deadline, clock)


def _limited(
    shape: Shape, roomy: Instance, known: BlockResult, options: SolveOptions, deadline: float, clock: Clock
) -> BlockResult:
    """A block in which the limits on a kernel's size may bind; ``roomy`` is the block without them."""
    whole = shape.problem
    until = within(clock, deadline, 0.4)
    task = prepare(shape, roomy, options, until, clock)
    first = listed(task, known, until)
    if first is None and clock.now() >= deadline:
        return known
    if first is None:
        until = within(clock, deadline, 0.8)
        known = _by_slots(whole, known, floor_cost(without_launches(roomy)), options, until, clock)
        if known.bound >= known.cost:
            return known
        # A small block may be listed after all, in more time.
        again = sampled if len(whole.ops) > LARGE_OPS else attempt
        first = again(task, known, within(clock, deadline, 0.75))
    if all(fits(whole, ops) for ops, _ in first.kernels):
        return first
    sized, memory = _to_size(shape, first, known.kernels, options, within(clock, deadline, 0.5), clock)
    if sized.bound < sized.cost:
        sized = _by_slots(whole, sized, memory, options, within(clock, deadline, 0.5), clock)
    if sized.bound >= sized.cost:
        return sized
    task = prepare(shape, whole, options, deadline, clock)
    second = attempt(task, sized, deadline)
    return replace(
        second,
        candidates=first.candidates + second.candidates,
        cuts=first.cuts + second.cuts,
        rounds=first.rounds + second.rounds,
    )


def _by_slots(
    whole: Instance, known: BlockResult, memory: int, options: SolveOptions, deadline: float, clock: Clock
) -> BlockResult:
    """The block by its number of kernels, if no large one can be cheaper than what is known."""
    launch = min(device.launch_ps for device in whole.devices)
    if not is_plain(whole) or MOST_SLOTS * launch + memory < known.cost - launch:
        return known
    found = few_kernels(whole, known.kernels, known.bound, memory, options, deadline, clock)
    return replace(known, kernels=found.kernels, cost=found.cost, bound=found.bound)


def _floor_by_parts(shape: Shape, options: SolveOptions, deadline: float, clock: Clock) -> int:
    """A bound from the parts of a block that small values tie together; 0 for most blocks, which have none."""
    whole = shape.problem
    loose = loosened(whole) if len(whole.ops) > whole.limits.max_ops else None
    if loose is None:
        return 0

    def least(part: Shape) -> int:
        start = tuple((kernel.ops, kernel.scheme) for kernel in greedy(part.problem).kernels)
        return solve_block(part, start, options, deadline, clock).bound

    return parts_bound(whole, loose, least)


def _is_close(whole: Instance, known: BlockResult) -> bool:
    """Whether a block is so large, and its bound so near, that listing candidates would not settle the rest."""
    return len(whole.ops) > LARGE_OPS and known.bound >= (1 - CLOSE) * known.cost


def _to_size(
    shape: Shape, roomy: BlockResult, warm: Partition, options: SolveOptions, deadline: float, clock: Clock
) -> tuple[BlockResult, int]:
    """What an answer without limits on a kernel's size says of the block with them, and a bound but for launches."""
    whole = shape.problem
    cut = tuple(cut_to_size(whole, roomy.kernels))
    if all(is_legal(whole, ops, scheme) for ops, scheme in cut) and cost_of(whole, cut) < cost_of(whole, warm):
        warm = cut
    free = replace(shape, problem=without_launches(without_limits(whole)))
    kernels = roomy.kernels
    start = BlockResult(kernels, cost_of(free.problem, kernels), floor_cost(free.problem))
    freed = attempt(prepare(free, free.problem, options, deadline, clock), start, deadline)
    cost = cost_of(whole, warm)
    bound = min(cost, max(roomy.bound, freed.bound + launches(whole)))
    return replace(roomy, kernels=warm, cost=cost, bound=bound), freed.bound


def _single(problem: Instance) -> BlockResult:
    """A block of one op: its cheapest scheme."""
    prices = pricer(problem)
    cost, scheme = min((prices.price(1, scheme), scheme) for scheme in prices.terms[0])
    return BlockResult((((0,), scheme),), cost, cost, 1, 0, 0, complete=True)


def lifted(ops: Sequence[int], kernels: Partition, schemes: Sequence[int]) -> Partition:
    """A block's partition in the ids of the whole instance."""
    return tuple((tuple(ops[op] for op in kernel), schemes[scheme]) for kernel, scheme in kernels)
