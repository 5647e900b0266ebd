"""The strategies that solve a block, and the loop that runs each with its share of the time.

A strategy takes the block and its best result so far, and returns an incumbent and a bound. ``STRATEGIES`` lists them
all; any of them may be dropped at the price of a weaker result (``benchmarks/ablation.py`` measures which).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from optfuse.problem.instance import Instance
from optfuse.problem.legality import is_legal
from optfuse.solver.baseline.greedy import greedy
from optfuse.solver.bounds.block_bound import block_bound
from optfuse.solver.bounds.parts_bound import loosened, parts_bound
from optfuse.solver.columns.pricing import pricer
from optfuse.solver.control.clock import WALL, Clock
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.reduce.blocks import LARGE_OPS, Shape
from optfuse.solver.reduce.size_limits import cut_to_size, fits, launches, without_launches, without_limits
from optfuse.solver.slots.slot_search import fits_slot_model, solve_by_kernel_count
from optfuse.solver.strategies.block import MOST_LISTED, BlockResult, Budget, Partition, cost_of
from optfuse.solver.strategies.column_generation import best_generated
from optfuse.solver.strategies.critical_path import critical_path_partition
from optfuse.solver.strategies.listing import Presolved, best_of_all, presolved
from optfuse.solver.strategies.variant_enumeration import choices, few_choices, solve_choices

#: The most kernels for which a block is searched by their number.
MOST_SLOTS = 8
#: Where listing all candidates takes too long, ops are tied by presolve if this costs no more than this share of a
#: launch: in blocks of at least so many ops, and those of more than so many begin with it. Once the gap of such a block
#: is at most ``NEAR_GAP``, all is listed or nothing more is tried.
NEAR_SHARE = 200
FEW_OPS, MANY_OPS = 100, 400
NEAR_GAP = 1e-4
#: Candidates that are listed before anything else is tried.
BRIEF = 20_000
#: Where alternatives can be combined in more ways, columns are generated for all at once first, in a share of the
#: time.
FEW_CHOICES, CHOICES_SHARE = 4, 0.4
#: Rough seconds of the start from the critical path for each op.
CRITICAL_PATH_SECONDS = 4e-4


@dataclass(slots=True)
class Subject:
    """The block to solve, and its presolved forms, which several strategies share."""

    shape: Shape
    roomy: Instance
    forms: dict[tuple[int, int], Presolved] = field(default_factory=dict)

    @property
    def problem(self) -> Instance:
        """The block as an instance."""
        return self.shape.problem

    @property
    def limited(self) -> bool:
        """Whether the limits on a kernel's size may bind."""
        return self.roomy is not self.problem

    def presolved(self, problem: Instance, budget: Budget, slack: int = 0) -> Presolved | None:
        """The presolved form of the block or of its form without limits, found once; None without time for it."""
        key = (id(problem), slack)
        form = self.forms.get(key) or presolved(self.shape, problem, budget, slack)
        if form is not None:
            self.forms[key] = form
        return form


Run = Callable[[Subject, BlockResult, Budget], BlockResult]
Applies = Callable[[Subject, BlockResult], bool]


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to improve the incumbent or the bound of a block.

    Attributes:
        name: Its name in the ablation.
        run: The function from the block, its result so far and a budget to a new result.
        share: The share of the block's remaining time that it may take.
        applies: Whether it can improve such a result of such a block.
        least_ops: The smallest block it applies to.
        most_ops: The largest block it applies to.
        leave_within: A large block is not improved further once its gap is at most this.
    """

    name: str
    run: Run
    share: float = 1.0
    applies: Applies = lambda subject, known: True
    least_ops: int = 1
    most_ops: float = math.inf
    leave_within: float = 0.0


def solve_block(
    shape: Shape,
    warm: Partition,
    options: SolveOptions,
    deadline: float,
    clock: Clock = WALL,
    listed: int = MOST_LISTED,
) -> BlockResult:
    """The best partition of a block found, and a bound. ``warm`` is a legal, acyclic partition to start from.

    Raises:
        IllegalKernelError: When the rules leave an op without any kernel.
    """
    problem = shape.problem
    if len(problem.ops) == 1 and not problem.variants:
        return _single(problem)
    cost = cost_of(problem, warm)
    known = BlockResult(warm, cost, min(block_bound(problem), cost))
    budget = Budget(options, clock, deadline, listed)
    if not budget.spent and few_choices(problem):

        def solve(decided: Shape, start: Partition, until: float) -> BlockResult:
            return solve_block(decided, start, options, until, clock, listed)

        subject = Subject(shape, problem)
        if choices(problem) > FEW_CHOICES:
            known = known.updated(generate_columns(subject, known, budget.part(CHOICES_SHARE)))
        return solve_choices(shape, known.kernels, solve, deadline, clock)
    subject = Subject(shape, without_limits(problem))
    size = len(problem.ops)
    for strategy in STRATEGIES:
        if known.proven or budget.spent:
            break
        if not (strategy.least_ops <= size <= strategy.most_ops and strategy.applies(subject, known)):
            continue
        known = known.updated(strategy.run(subject, known, budget.part(strategy.share)))
        if size > LARGE_OPS and known.bound >= (1 - strategy.leave_within) * known.cost:
            break
    return known


def bound_by_parts(subject: Subject, known: BlockResult, budget: Budget) -> BlockResult:
    """A bound from the parts of a block that only small values connect; most blocks have no such parts."""
    loose = loosened(subject.problem)
    if loose is None:
        return known.idle()

    def least(part: Shape) -> int:
        start = tuple((kernel.ops, kernel.scheme) for kernel in greedy(part.problem).kernels)
        return solve_block(part, start, budget.options, budget.deadline, budget.clock, budget.listed).bound

    bound = parts_bound(subject.problem, loose, least)
    return replace(known.idle(), bound=max(known.bound, bound))


def start_from_critical_path(subject: Subject, known: BlockResult, budget: Budget) -> BlockResult:
    """The partition that fuses the critical path first, then attaches the remaining ops."""
    seconds = CRITICAL_PATH_SECONDS * len(subject.problem.ops)
    if not budget.allows(seconds):
        return known.idle()
    kernels = critical_path_partition(subject.problem, budget.deadline, budget.clock)
    budget.clock.spend(seconds)
    return replace(known.idle(), kernels=kernels, cost=cost_of(subject.problem, kernels))


def list_without_limits(subject: Subject, known: BlockResult, budget: Budget) -> BlockResult:
    """The best partition without limits on a kernel's size, cut to size; its bound holds with limits too.

    Presolve is stronger without the limits: its rules need room for another op in a kernel.
    """
    return _listed_without_limits(subject, known, budget)


def list_briefly(subject: Subject, known: BlockResult, budget: Budget) -> BlockResult:
    """The best partition where there are few candidates, without limits on a kernel's size if these may bind."""
    if subject.limited:
        return _listed_without_limits(subject, known, budget, most=BRIEF)
    return list_candidates(subject, known, budget, BRIEF)


def list_near_ties(subject: Subject, known: BlockResult, budget: Budget) -> BlockResult:
    """The best partition without limits, cut to size, where ops that gain next to nothing apart are tied."""
    slack = min(device.launch_ps for device in subject.problem.devices) // NEAR_SHARE
    form = subject.presolved(subject.roomy, budget, slack)
    return _listed_without_limits(subject, known, budget, slack) if form is not None and form.loss else known.idle()


def _listed_without_limits(
    subject: Subject, known: BlockResult, budget: Budget, slack: int = 0, most: int = 0
) -> BlockResult:
    """The best partition without limits, cut to size, after presolve with some slack in picoseconds."""
    form = subject.presolved(subject.roomy, budget, slack)
    found = None if form is None else best_of_all(form, known, most or budget.listed, budget)
    if found is None:
        return known.idle()
    problem = subject.problem
    if all(fits(problem, ops) for ops, _ in found.kernels):
        return found
    cut = tuple(cut_to_size(problem, found.kernels))
    legal = all(is_legal(problem, ops, scheme) for ops, scheme in cut)
    kernels = cut if legal else known.kernels
    return replace(found, kernels=kernels, cost=cost_of(problem, kernels), complete=False, unlimited=found.kernels)


def bound_by_launches(subject: Subject, known: BlockResult, budget: Budget) -> BlockResult:
    """A bound: the launches of the fewest kernels plus the optimum without launches and limits on size."""
    shape = replace(subject.shape, problem=without_launches(subject.roomy))
    cost = cost_of(shape.problem, known.unlimited)
    start = BlockResult(known.unlimited, cost, min(cost, block_bound(shape.problem)))
    form = presolved(shape, shape.problem, budget)
    found = None if form is None else best_of_all(form, start, budget.listed, budget)
    free = start if found is None else found
    bound = max(known.bound, free.bound + launches(subject.problem))
    return replace(known.idle(), bound=bound, memory=free.bound)


def search_by_kernel_count(subject: Subject, known: BlockResult, budget: Budget) -> BlockResult:
    """The cheapest partition for each small number of kernels, if no larger number can be cheaper."""
    problem = subject.problem
    launch = min(device.launch_ps for device in problem.devices)
    memory = known.memory or block_bound(without_launches(subject.roomy))
    if MOST_SLOTS * launch + memory < known.cost - launch:
        return known.idle()
    options, clock = budget.options, budget.clock
    found = solve_by_kernel_count(problem, known.kernels, known.bound, memory, options, budget.deadline, clock)
    return replace(known.idle(), kernels=found.kernels, cost=found.cost, bound=found.bound)


def list_candidates(subject: Subject, known: BlockResult, budget: Budget, most: int = 0) -> BlockResult:
    """The best choice among all candidates, if there are at most ``most`` of them."""
    form = subject.presolved(subject.problem, budget)
    found = None if form is None else best_of_all(form, known, most or budget.listed, budget)
    return known.idle() if found is None else found


def generate_columns(subject: Subject, known: BlockResult, budget: Budget) -> BlockResult:
    """The best choice among the candidates that the dual prices of the linear relaxation ask for."""
    form = subject.presolved(subject.problem, budget)
    return known.idle() if form is None else best_generated(form, known, budget)


def _unlisted(subject: Subject, known: BlockResult) -> bool:
    nearly = len(subject.problem.ops) >= FEW_OPS and known.bound >= (1 - NEAR_GAP) * known.cost
    return not known.complete and not nearly


def _many(subject: Subject) -> bool:
    """Whether listing all candidates is likely in vain."""
    return MANY_OPS < len(subject.problem.ops) <= LARGE_OPS


def _listable(subject: Subject, known: BlockResult) -> bool:
    """Whether all candidates may be listed next: where those without limits were too many, a sample comes first."""
    return not known.complete and (not subject.limited or bool(known.unlimited))


def _plain(subject: Subject, known: BlockResult) -> bool:
    return not known.complete and fits_slot_model(subject.problem)


#: The strategies, in the order in which they run.
STRATEGIES = (
    Strategy(
        "parts",
        bound_by_parts,
        share=0.1,
        applies=lambda subject, _: len(subject.problem.ops) > subject.problem.limits.max_ops,
        leave_within=0.02,
    ),
    Strategy("brief listing", list_briefly, share=0.2, most_ops=LARGE_OPS),
    Strategy("generation, brief", generate_columns, share=0.15, applies=_unlisted, most_ops=LARGE_OPS),
    Strategy("critical path, large", start_from_critical_path, applies=_plain, least_ops=LARGE_OPS + 1),
    Strategy(
        "near ties, many ops",
        list_near_ties,
        share=0.7,
        applies=lambda subject, _: _many(subject),
    ),
    Strategy(
        "listing without limits",
        list_without_limits,
        share=0.4,
        applies=lambda subject, known: subject.limited and not known.unlimited,
    ),
    Strategy("launches", bound_by_launches, share=0.5, applies=lambda _, known: bool(known.unlimited)),
    Strategy(
        "kernel count",
        search_by_kernel_count,
        share=0.7,
        applies=lambda subject, known: subject.limited and _plain(subject, known),
    ),
    Strategy("listing", list_candidates, applies=_listable),
    Strategy("critical path, small", start_from_critical_path, applies=_plain, most_ops=LARGE_OPS),
    Strategy(
        "near ties",
        list_near_ties,
        share=0.3,
        applies=lambda subject, known: not known.complete and not _many(subject),
        least_ops=FEW_OPS,
    ),
    Strategy("generation", generate_columns, applies=_unlisted),
)


def _single(problem: Instance) -> BlockResult:
    """A block of one op: its cheapest scheme."""
    prices = pricer(problem)
    cost, scheme = min((prices.price(1, scheme), scheme) for scheme in prices.terms[0])
    return BlockResult((((0,), scheme),), cost, cost, 1, 0, 0, complete=True)
