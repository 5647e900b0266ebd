"""Kernels and transfers in time: when each begins in a given order, and the least time that any order takes.

The device runs kernels one after the other. Each communicator (an op's ``channel``) runs its transfers one after the
other, beside the kernels. A collective's launch takes the device no time: its transfer begins once the kernels before
it in the order have ended. A wait holds the kernels after it until the transfer has ended. While a transfer is in
flight kernels are slower: what takes 100 alone takes 100 and ``slowdown``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from optfuse.problem.cost import kernel_cost
from optfuse.problem.instance import Instance
from optfuse.problem.solution import Kernel
from optfuse.solver.memory.order_problem import OrderProblem


@dataclass(frozen=True, slots=True)
class TimelineProblem:
    """Kernels with their resources. Times are picoseconds.

    Attributes:
        before, after: The kernels directly before and after each kernel.
        busy: The device's time for each kernel; 0 for starts and waits of collectives.
        transfer: The communicator's time for each start; 0 for other kernels.
        channel: The communicator of each start; 0 for other kernels.
        awaited: For each wait the starts that it waits for; empty for other kernels.
        is_event: Whether a kernel takes none of the device's time: starts and waits.
        topological: One valid order.
        slowdown: Per cent that a kernel takes longer beside a transfer.
    """

    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    busy: tuple[int, ...]
    transfer: tuple[int, ...]
    channel: tuple[int, ...]
    awaited: tuple[tuple[int, ...], ...]
    is_event: tuple[bool, ...]
    topological: tuple[int, ...]
    slowdown: int = 0


@dataclass(frozen=True, slots=True)
class Timeline:
    """An order in time: ``begins`` and ``ends`` of each kernel (of a start: of its transfer), and the last of the ends.

    ``idle``: how long the device runs no kernel.
    """

    begins: tuple[int, ...]
    ends: tuple[int, ...]
    makespan: int
    idle: int


def timeline_problem(
    instance: Instance, kernels: Sequence[Kernel], problem: OrderProblem, order: Sequence[int]
) -> TimelineProblem:
    """The timeline problem of some kernels, of which ``order`` is a valid order."""
    ops = [instance.ops[kernel.ops[0]] for kernel in kernels]
    is_event = tuple(op.kind in ("collective", "wait") for op in ops)
    starts = [{kernel for kernel in mine if ops[kernel].kind == "collective"} for mine in problem.before]
    return TimelineProblem(
        before=problem.before,
        after=problem.after,
        busy=tuple(
            0 if event else kernel_cost(instance, kernel.ops, kernel.scheme, kernel.writes)
            for kernel, event in zip(kernels, is_event, strict=True)
        ),
        transfer=tuple(op.transfer_ps for op in ops),
        channel=tuple(op.channel for op in ops),
        awaited=tuple(tuple(sorted(mine)) if op.kind == "wait" else () for op, mine in zip(ops, starts, strict=True)),
        is_event=is_event,
        topological=tuple(order),
        slowdown=instance.devices[0].link_slowdown_percent,
    )


def timeline(problem: TimelineProblem, order: Sequence[int]) -> Timeline:
    """When each kernel begins in an order."""
    begins, ends = [0] * len(order), [0] * len(order)
    now = idle = last = 0  # last: until when some transfer is in flight, of those started so far
    free: dict[int, int] = {}
    for kernel in order:
        if problem.channel[kernel]:
            begins[kernel] = max(now, free.get(problem.channel[kernel], 0))
            free[problem.channel[kernel]] = ends[kernel] = begins[kernel] + problem.transfer[kernel]
            last = max(last, ends[kernel])
            continue
        ended = [ends[start] for start in problem.awaited[kernel]]
        begins[kernel] = max(now, *ended) if ended else now
        idle += begins[kernel] - now
        now = ends[kernel] = begins[kernel] + stretched(problem.busy[kernel], last - begins[kernel], problem.slowdown)
    makespan = max(now, last)
    return Timeline(tuple(begins), tuple(ends), makespan, idle + makespan - now)


def stretched(busy: int, beside: int, slowdown: int) -> int:
    """How long a kernel takes that alone takes ``busy``, when a transfer is in flight for ``beside`` from its begin."""
    if beside <= 0 or not slowdown:
        return busy
    slow = busy * (100 + slowdown) // 100
    return slow if slow <= beside else busy + beside * slowdown // (100 + slowdown)


def least_makespan(problem: TimelineProblem) -> int:
    """A lower bound on the makespan of any order: critical path, the device's load, and each communicator's."""
    launch, begin = _heads(problem)
    behind_launch, behind_begin = tails(problem)
    bound = _load_beside_transfers(problem)
    for kernel in problem.topological:
        bound = max(bound, launch[kernel] + behind_launch[kernel], begin[kernel] + behind_begin[kernel])
    for channel in set(problem.channel) - {0}:
        mine = [kernel for kernel, used in enumerate(problem.channel) if used == channel]
        load = sum(problem.transfer[kernel] for kernel in mine)
        after = min(behind_begin[kernel] - problem.transfer[kernel] for kernel in mine)
        bound = max(bound, min(begin[kernel] for kernel in mine) + load + after)
    return bound


def _load_beside_transfers(problem: TimelineProblem) -> int:
    """The device's time for all kernels, and what they lose beside transfers.

    Transfers are in flight for at least the time of the busiest communicator. Meanwhile the device does at most 100 of
    work in 100 and ``slowdown`` of time; when it does nothing, that is lost as well.
    """
    loads: Counter[int] = Counter()
    for channel, transfer in zip(problem.channel, problem.transfer, strict=True):
        loads[channel] += transfer
    lost = max(loads.values()) * problem.slowdown // (100 + problem.slowdown)
    rounding = len(problem.busy)  # a kernel's time beside transfers is rounded down
    return sum(problem.busy) + max(0, lost - rounding)


def _heads(problem: TimelineProblem) -> tuple[list[int], list[int]]:
    """The least time before each kernel's launch, and before it begins: a start's transfer may have to queue."""
    launch, begin = [0] * len(problem.topological), [0] * len(problem.topological)
    above = [0] * len(problem.topological)
    load = _Load(problem.busy)
    for kernel in problem.topological:
        for earlier in problem.before[kernel]:
            above[kernel] |= above[earlier] | 1 << earlier
            launch[kernel] = max(launch[kernel], launch[earlier] + problem.busy[earlier])
        launch[kernel] = max(launch[kernel], load(above[kernel]))
        for start in problem.awaited[kernel]:
            launch[kernel] = max(launch[kernel], begin[start] + problem.transfer[start])
        begin[kernel] = launch[kernel]
        for earlier in queued_before(problem, kernel):
            begin[kernel] = max(begin[kernel], begin[earlier] + problem.transfer[earlier])
    return launch, begin


def tails(problem: TimelineProblem) -> tuple[list[int], list[int]]:
    """The least time to the end of all from each kernel's launch, and from its begin."""
    launch, begin = [0] * len(problem.topological), [0] * len(problem.topological)
    below = [0] * len(problem.topological)
    load = _Load(problem.busy)
    for kernel in reversed(problem.topological):
        own = problem.busy[kernel] + problem.transfer[kernel]
        begin[kernel] = own
        for later in problem.after[kernel]:
            below[kernel] |= below[later] | 1 << later
            launch[kernel] = max(launch[kernel], problem.busy[kernel] + launch[later])
            if kernel in problem.awaited[later]:
                begin[kernel] = max(begin[kernel], own + launch[later])
            elif kernel in queued_before(problem, later):
                begin[kernel] = max(begin[kernel], own + begin[later])
        launch[kernel] = max(launch[kernel], begin[kernel], problem.busy[kernel] + load(below[kernel]))
        if not problem.channel[kernel]:
            begin[kernel] = launch[kernel]
    return launch, begin


class _Load:
    """The device's time for a set of kernels, given as a mask; a table for each eight of them."""

    def __init__(self, busy: Sequence[int]) -> None:
        self.tables: list[list[int]] = []
        for first in range(0, len(busy), 8):
            table = [0]
            for time in busy[first : first + 8]:
                table += [time + other for other in table]
            self.tables.append(table)

    def __call__(self, mask: int) -> int:
        return sum(
            [table[byte] for table, byte in zip(self.tables, mask.to_bytes(len(self.tables), "little"), strict=True)]
        )


def queued_before(problem: TimelineProblem, kernel: int) -> tuple[int, ...]:
    """The starts directly before a start that use its communicator."""
    channel = problem.channel[kernel]
    return tuple(k for k in problem.before[kernel] if problem.channel[k] == channel) if channel else ()
