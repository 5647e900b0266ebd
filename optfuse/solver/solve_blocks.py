"""Decompose an instance into blocks, solve each distinct block once, and join blocks whose kernels form a cycle."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from optfuse.errors import InvalidOptionError
from optfuse.problem.cost import default_writes
from optfuse.problem.instance import Instance
from optfuse.problem.solution import Kernel, Solution
from optfuse.solver.block_cycles import Answer, cycles_across, joined_blocks, without_cycles
from optfuse.solver.bounds.block_bound import block_bound
from optfuse.solver.bounds.cost_bound import cost_bound
from optfuse.solver.control.clock import Clock
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.control.progress import Journal, Stage
from optfuse.solver.memory.order_problem import nearest_order, precedences
from optfuse.solver.reduce.blocks import Block, Shape, cut_out, find_blocks
from optfuse.solver.solve_block import FEW_OPS, NEAR_GAP, solve_block
from optfuse.solver.strategies.block import MOST_LISTED, BlockResult, Partition, cost_of, lifted

#: The least time of a block, as long as four times as much is left.
LEAST_SECONDS = 5.0
#: The least time of a block whose gap costs little in the calls that are expected.
WORTH_SECONDS = 2.0
PICOSECONDS = 10**12
#: The share of the time left that goes to blocks before any are joined.
FIRST_SHARE = 0.85
#: Rough seconds to cut out a block, for each op; the clock is checked before each block of so many ops.
CUT_SECONDS = 1e-4
CHECK_OPS = 500


@dataclass(frozen=True, slots=True)
class CpsatOutcome:
    """A partition in a topological order, and what was proven of it.

    Attributes:
        kernels: The kernels; those of alternatives that were not taken are absent.
        objective: Their cost in picoseconds.
        bound: A lower bound on the cost of every solution of the whole instance, in picoseconds.
        proven: Whether objective and bound are equal.
        blocks: Parts solved apart.
        unique_blocks: Parts that differ from each other.
        candidates: Candidate kernels over the unique blocks.
        cuts: Constraints added against cycles of kernels and fractional relaxations, and joins of blocks on a cycle.
        rounds: Solves of the hardest block's master problem, or of the whole where blocks had to be joined.
        given_up: One line for each thing that was not proven, and why.
    """

    kernels: tuple[Kernel, ...]
    objective: int
    bound: int
    proven: bool
    blocks: int
    unique_blocks: int
    candidates: int
    cuts: int
    rounds: int
    given_up: tuple[str, ...] = ()


class _OutOfTimeError(Exception):
    """Time ran out before the first block was solved."""


@dataclass(slots=True)
class _Work:
    """The instance, the results by block shape, and the counts to report."""

    instance: Instance
    warm: Solution
    options: SolveOptions
    deadline: float
    clock: Clock
    journal: Journal
    listed: int
    results: dict[Shape, BlockResult] = field(default_factory=dict)
    blocks: dict[tuple[int, ...], Block] = field(default_factory=dict)
    shapes: dict[Shape, Shape] = field(default_factory=dict)
    joins: int = 0

    def check_time(self) -> None:
        """Raise ``_OutOfTimeError`` if it is later than the deadline."""
        if self.clock.now() >= self.deadline:
            raise _OutOfTimeError

    def worth_until(self, gap: int) -> float:
        """Until when a gap of so many picoseconds a call is worth more than the time to close it."""
        if self.options.calls is None:
            return math.inf
        return self.clock.now() + max(WORTH_SECONDS, self.options.calls * gap / PICOSECONDS)

    def cut_out(self, groups: Iterable[tuple[int, ...]]) -> list[Block]:
        """The blocks of some groups of ops, each cut out once; those of equal shape have the same one."""
        for number, group in enumerate(groups):
            if group not in self.blocks:
                if (number % 16 == 0 or len(group) >= CHECK_OPS) and not self.results:
                    self.check_time()
                block = cut_out(self.instance, group)
                self.blocks[group] = replace(block, shape=self.shapes.setdefault(block.shape, block.shape))
                self.clock.spend(CUT_SECONDS * len(group))
        return [self.blocks[group] for group in groups]


def solve_cpsat(
    instance: Instance,
    options: SolveOptions,
    warm: Solution,
    deadline: float,
    clock: Clock | None = None,
    journal: Journal | None = None,
    listed: int = MOST_LISTED,
) -> CpsatOutcome:
    """The cheapest partition of an instance into kernels found before ``deadline``, and a bound on every partition.

    Args:
        warm: A valid solution; the result costs no more.
        deadline: A time of ``clock``; of ``time.monotonic`` if that is not given.
        journal: Where to note objective and bound as they change.
        listed: The most candidates of a block that are listed.

    Raises:
        InvalidOptionError: When the instance caps peak memory, which ``solver.joint`` decides.
        IllegalKernelError: When the user's rules leave an op without a kernel.
    """
    if instance.rules.peak_memory is not None:
        raise InvalidOptionError(
            f"instance {instance.name!r} caps peak memory, which solver 'cpsat' does not decide yet; "
            "drop rules.peak_memory, or use 'exhaustive' on a small instance"
        )
    clock = Clock(interruptible=False) if clock is None else clock
    work = _Work(instance, warm, options, deadline, clock, Journal() if journal is None else journal, listed)
    if clock.now() >= deadline:
        return _warm_start_outcome(work)
    try:
        groups = find_blocks(instance, work.check_time)
        answers = _solve_groups(work, groups, {})
    except _OutOfTimeError:
        return _warm_start_outcome(work)
    while cycles := cycles_across(instance, answers):
        if work.clock.now() >= deadline:
            answers = _restore_warm_starts(work, groups, answers)
            break
        groups, floors = joined_blocks(instance, groups, answers, cycles)
        work.joins += 1
        answers = _solve_groups(work, groups, floors)
    _note(work, "search", answers)
    return _outcome(work, groups, _retry_unproven(work, groups, answers))


def _note(work: _Work, stage: Stage, answers: Sequence[Answer]) -> None:
    """Note the objective and the bound of answers whose kernels form no cycle."""
    work.journal.note(stage, sum(answer.cost for answer in answers), sum(answer.bound for answer in answers))


def _solve_groups(work: _Work, groups: Sequence[tuple[int, ...]], floors: dict[int, int]) -> list[Answer]:
    """The answers of all blocks. Each distinct block is solved once, small ones first; unused time goes to large ones.

    ``floors`` are known bounds of groups, by first op. Some time is kept for blocks that have to be joined later.
    """
    blocks = work.cut_out(groups)
    warm_starts = _warm_starts(work, blocks)
    starts: dict[Shape, Partition] = {}
    for block, start in zip(blocks, warm_starts, strict=True):
        problem = block.shape.problem
        known = starts.get(block.shape)
        if known is None or (start != known and cost_of(problem, start) < cost_of(problem, known)):
            starts[block.shape] = start
    if not work.results:
        work.check_time()
    waiting = sorted((shape for shape in starts if shape not in work.results), key=lambda s: len(s.problem.ops))
    now = work.clock.now()
    finish_by = now + FIRST_SHARE * max(0.0, work.deadline - now)
    tally = _Tally(work, blocks, [floors.get(group[0], 0) for group in groups])
    equal = Counter(block.shape for block in blocks)
    for number, shape in enumerate(waiting):
        now = work.clock.now()
        left = max(0.0, finish_by - now)
        share = left * _share([len(other.problem.ops) for other in waiting[number:]])
        gap = equal[shape] * (cost_of(shape.problem, starts[shape]) - block_bound(shape.problem))
        until = min(now + max(share, min(LEAST_SECONDS, left / 4)), work.worth_until(gap))
        work.results[shape] = _solved(work, shape, starts[shape], until)
        tally.note("join" if work.joins else "blocks", shape)
    return [_answer(work, block, floors.get(group[0], 0)) for block, group in zip(blocks, groups, strict=True)]


def _solved(work: _Work, shape: Shape, start: Partition, deadline: float) -> BlockResult:
    """The result of a block; after a KeyboardInterrupt, its warm start."""
    try:
        return solve_block(shape, start, work.options, deadline, work.clock, work.listed)
    except KeyboardInterrupt:
        work.clock.interrupted()
        return solve_block(shape, start, work.options, deadline, work.clock, work.listed)


class _Tally:
    """The bound of the whole instance while its blocks are solved one after another."""

    def __init__(self, work: _Work, blocks: Sequence[Block], floors: Sequence[int]) -> None:
        self._work = work
        self._floors: dict[Shape, list[int]] = {}
        for block, floor in zip(blocks, floors, strict=True):
            self._floors.setdefault(block.shape, []).append(floor)
        self._known = {
            shape: work.results[shape].bound if shape in work.results else block_bound(shape.problem)
            for shape in self._floors
        }
        self._bound = sum(self._share_of(shape) for shape in self._known)

    def _share_of(self, shape: Shape) -> int:
        return sum(max(self._known[shape], floor) for floor in self._floors[shape])

    def note(self, stage: Stage, shape: Shape) -> None:
        """Count the result of a block. The objective is noted later, once no kernels form a cycle."""
        self._bound -= self._share_of(shape)
        self._known[shape] = self._work.results[shape].bound
        self._bound += self._share_of(shape)
        self._work.journal.bound(stage, self._bound)


def _answer(work: _Work, block: Block, floor: int) -> Answer:
    result = work.results[block.shape]
    kernels = lifted(block.ops, result.kernels, block.schemes)
    return Answer(kernels, result.cost, min(result.cost, max(result.bound, floor)), result.complete)


def _retry_unproven(work: _Work, groups: Sequence[tuple[int, ...]], answers: list[Answer]) -> list[Answer]:
    """The answers after the remaining time is spent on unproven blocks, the widest gap first.

    Cheaper partitions are taken if they close no cycle, higher bounds in any case.
    """
    if all(map(_settled, answers)) or work.clock.now() >= work.deadline:
        return answers
    blocks = work.cut_out(groups)
    gaps = {block.shape: answer.cost - answer.bound for block, answer in zip(blocks, answers, strict=True)}
    equal = Counter(block.shape for block in blocks)
    late = sorted((shape for shape in gaps if not _settled(work.results[shape])), key=lambda shape: -gaps[shape])
    for number, shape in enumerate(late):
        now = work.clock.now()
        left = work.deadline - now
        if left <= 0:
            break
        old = work.results[shape]
        until = min(now + left / (len(late) - number), work.worth_until(equal[shape] * gaps[shape]))
        new = _solved(work, shape, old.kernels, until)
        work.results[shape] = replace(new, bound=min(new.cost, max(old.bound, new.bound)))
    better = [_answer(work, block, answer.bound) for block, answer in zip(blocks, answers, strict=True)]
    return without_cycles(work.instance, answers, better)


def _settled(found: Answer | BlockResult) -> bool:
    """Whether a block is proven, or a large one nearly: more time would gain next to nothing."""
    large = sum(len(ops) for ops, _ in found.kernels) >= FEW_OPS
    return found.bound >= (1 - NEAR_GAP * large) * found.cost


def _share(sizes: Sequence[int]) -> float:
    """The first block's share of the remaining time: in proportion to the square of its ops."""
    return sizes[0] ** 2 / max(1, sum(size**2 for size in sizes))


def _warm_starts(work: _Work, blocks: Sequence[Block]) -> list[Partition]:
    """The warm start's kernels of each block, in the block's own ids."""
    place = {op: (number, i) for number, block in enumerate(blocks) for i, op in enumerate(block.ops)}
    found: list[list[tuple[tuple[int, ...], int]]] = [[] for _ in blocks]
    for kernel in work.warm.kernels:
        number = place[kernel.ops[0]][0]
        block = blocks[number]
        found[number].append((tuple(place[op][1] for op in kernel.ops), block.schemes.index(kernel.scheme)))
    return [tuple(kernels) for kernels in found]


def _restore_warm_starts(work: _Work, groups: Sequence[tuple[int, ...]], answers: list[Answer]) -> list[Answer]:
    """The answers with the warm start for blocks on cycles, until no cycle is left."""
    blocks = work.cut_out(groups)
    starts = _warm_starts(work, blocks)
    while cycles := cycles_across(work.instance, answers):
        for number in set().union(*cycles):
            block = blocks[number]
            kernels = lifted(block.ops, starts[number], block.schemes)
            cost = cost_of(block.shape.problem, starts[number])
            answers[number] = replace(answers[number], kernels=kernels, cost=cost)
    return answers


def _warm_start_outcome(work: _Work) -> CpsatOutcome:
    """The warm start with a quick bound, when there was no time to search."""
    bound = cost_bound(work.instance, quick=True)
    return CpsatOutcome(
        kernels=work.warm.kernels,
        objective=work.warm.objective,
        bound=min(bound, work.warm.objective),
        proven=bound >= work.warm.objective,
        blocks=0,
        unique_blocks=0,
        candidates=0,
        cuts=0,
        rounds=0,
        given_up=("search: there was no time for it",),
    )


def _outcome(work: _Work, groups: Sequence[tuple[int, ...]], answers: Sequence[Answer]) -> CpsatOutcome:
    partition = [kernel for answer in answers for kernel in answer.kernels]
    objective = sum(answer.cost for answer in answers)
    bound = sum(answer.bound for answer in answers)
    results = work.results.values()
    return CpsatOutcome(
        kernels=_in_order(work.instance, partition),
        objective=objective,
        bound=bound,
        proven=objective == bound,
        blocks=len(groups),
        unique_blocks=len(work.results),
        candidates=sum(result.candidates for result in results),
        cuts=sum(result.cuts for result in results) + work.joins,
        rounds=max((result.rounds for result in results), default=0) + work.joins,
        given_up=_given_up(work.instance, groups, answers),
    )


def _given_up(instance: Instance, groups: Sequence[tuple[int, ...]], answers: Sequence[Answer]) -> tuple[str, ...]:
    """A line for each kind of block that is not proven optimal: how many there are, how large, and why."""
    kinds: dict[tuple[int, str], list[str]] = {}
    for group, answer in zip(groups, answers, strict=True):
        if answer.cost > answer.bound:
            why = "time ran out" if answer.complete else "its candidate kernels were not all listed"
            gap = (answer.cost - answer.bound) / answer.cost
            share = f"{gap:.2%}" if gap > NEAR_GAP else f"below {NEAR_GAP:.2%}"
            kinds.setdefault((len(group), f"{why}, gap {share}"), []).append(instance.ops[group[0]].name)
    return tuple(
        f"{len(names)} block{'s' if len(names) > 1 else ''} of {size} ops (from op {names[0]!r}): {why}"
        for (size, why), names in kinds.items()
    )


def _in_order(instance: Instance, partition: Sequence[tuple[tuple[int, ...], int]]) -> tuple[Kernel, ...]:
    """The kernels in a topological order, the earliest op first."""
    running = {op for ops, _ in partition for op in ops} if instance.variants else None
    kernels = [
        Kernel(tuple(sorted(ops)), scheme, default_writes(instance, ops, scheme, running)) for ops, scheme in partition
    ]
    order = nearest_order([kernel.ops[0] for kernel in kernels], precedences(instance, kernels))
    return tuple(kernels[number] for number in order)
