"""Kernels cut in parts where that lets communication run beside them: the way back from the order to the partition.

The partition is chosen for the least sum of the kernels' times. A kernel of ops that need different transfers waits for
all of them, and one that holds what a transfer sends delays it until the rest is computed. Its parts cost launches and
traffic more, and each may run when its own transfers allow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from optfuse.problem.cost import default_writes
from optfuse.problem.instance import Instance
from optfuse.problem.legality import is_legal
from optfuse.problem.op_masks import mask_of
from optfuse.problem.reach import Reach
from optfuse.problem.solution import Kernel
from optfuse.solver.control.clock import WALL, Clock
from optfuse.solver.memory.order_problem import order_problem, program_order
from optfuse.solver.overlap.list_schedule import kernels_alone, list_order, with_events
from optfuse.solver.overlap.timeline import tails, timeline, timeline_problem

#: Beyond so many kernels a list schedule for each cut that is tried takes too long.
MAX_KERNELS = 2_000
#: Per cent of the makespan that cuts must save: they give up the least sum of the kernels' times, which is proven.
LEAST_PERCENT = 1


@dataclass(frozen=True, slots=True)
class Cut:
    """Kernels with some of them cut. ``saved`` is the makespan less, by list schedules, in picoseconds."""

    kernels: tuple[Kernel, ...]
    count: int = 0
    saved: int = 0

    def lines(self) -> tuple[str, ...]:
        """What was done, in words, for the notes of a result."""
        if not self.count:
            return ()
        return (f"{self.count} kernels of least total time are cut: the call takes {self.saved / 1e6:.1f} us less",)


def cut_for_transfers(instance: Instance, kernels: Sequence[Kernel], deadline: float, clock: Clock = WALL) -> Cut:
    """The kernels, with those cut that make the makespan shorter.

    First all that can be cut are; then each is put together again where that makes the call no longer. Starts keep
    their traced order, so ranks agree whatever they cut.
    """
    whole = tuple(kernels)
    if len(whole) > MAX_KERNELS or not any(op.transfer_ps for op in instance.ops):
        return Cut(whole)
    parts = dict(_parts(instance, whole))
    if not parts:
        return Cut(whole)

    def with_cuts(cut: Collection[Kernel]) -> tuple[Kernel, ...]:
        return tuple(part for kernel in whole for part in (parts[kernel] if kernel in cut else (kernel,)))

    before, cut = _makespan(instance, whole), set(parts)
    best = _makespan(instance, with_cuts(cut))
    for kernel in parts:
        if clock.now() >= deadline:
            break
        makespan = _makespan(instance, with_cuts(cut - {kernel}))
        if makespan <= best:
            best = makespan
            cut.discard(kernel)
    is_worth_it = 100 * (before - best) > LEAST_PERCENT * before
    return Cut(with_cuts(cut), len(cut), before - best) if is_worth_it else Cut(whole)


def _parts(instance: Instance, kernels: Sequence[Kernel]) -> Iterator[tuple[Kernel, tuple[Kernel, ...]]]:
    """Each kernel that can be cut, with its parts: ops that need the same transfers, and that the same ones need.

    No cycle can come of it: of two parts with paths both ways each would need what the other one needs.
    """
    reach = Reach.of(instance)
    starts = mask_of(number for number, op in enumerate(instance.ops) if op.kind == "collective")
    running = {op for kernel in kernels for op in kernel.ops} if instance.variants else None
    for kernel in kernels:
        groups: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for op in kernel.ops:
            groups[reach.ancestors[op] & starts, reach.descendants[op] & starts].append(op)
        if len(groups) > 1 and all(is_legal(instance, ops, kernel.scheme) for ops in groups.values()):
            yield (
                kernel,
                tuple(
                    Kernel(tuple(ops), kernel.scheme, default_writes(instance, ops, kernel.scheme, running))
                    for ops in groups.values()
                ),
            )


def _makespan(instance: Instance, kernels: Sequence[Kernel]) -> int:
    """The least makespan of a list schedule, and of the program's order with starts early and waits late."""
    problem = order_problem(instance, kernels)
    order = program_order(problem)
    timed = timeline_problem(instance, kernels, problem, order)
    behind, _ = tails(timed)
    orders = (list_order(timed, behind), with_events(timed, kernels_alone(timed, order), behind))
    return min(timeline(timed, each).makespan for each in orders)
