"""A schedule with communication in time: a lane for the device's kernels, and one for each communicator's transfers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optfuse.problem.instance import Instance
from optfuse.problem.solution import Solution
from optfuse.solver.memory.order_problem import order_problem
from optfuse.solver.overlap.overlap import transfers
from optfuse.solver.overlap.timeline import timeline, timeline_problem

#: The kernel of a span that belongs to none: the device waits for what is in flight when all kernels are done.
NO_KERNEL = -1


@dataclass(frozen=True, slots=True)
class Span:
    """From ``begin`` to ``end``, in picoseconds, for a kernel by its number in the solution."""

    kernel: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Lanes:
    """A solution's kernels in its order, in time. Times are picoseconds under the model.

    Attributes:
        device: The kernels that the device runs, one after the other.
        exposed: When the device runs none, for it waits: by the wait's kernel, or ``NO_KERNEL`` after the last one.
        communicators: The transfers of each communicator, one after the other, each by the kernel that starts it.
        launches: When each kernel's turn comes; a transfer may have to queue then.
        makespan: The end of the last kernel and transfer.
    """

    device: tuple[Span, ...]
    exposed: tuple[Span, ...]
    communicators: Mapping[int, tuple[Span, ...]]
    launches: tuple[int, ...]
    makespan: int

    @property
    def exposed_ps(self) -> int:
        """How long the device waits for communication."""
        return sum(span.end - span.begin for span in self.exposed)


def lanes(instance: Instance, solution: Solution) -> Lanes | None:
    """The lanes of a solution; None where nothing communicates."""
    if not transfers(instance):
        return None
    order = range(len(solution.kernels))
    problem = timeline_problem(instance, solution.kernels, order_problem(instance, solution.kernels), order)
    timed = timeline(problem, order)
    device: list[Span] = []
    exposed: list[Span] = []
    communicators: dict[int, list[Span]] = {channel: [] for channel in sorted(set(problem.channel) - {0})}
    launches: list[int] = []
    now = 0
    for kernel in order:
        launches.append(now)
        span = Span(kernel, timed.begins[kernel], timed.ends[kernel])
        if problem.channel[kernel]:
            communicators[problem.channel[kernel]].append(span)
            continue
        if span.begin > now:
            exposed.append(Span(kernel, now, span.begin))
        if not problem.is_event[kernel]:
            device.append(span)
        now = span.end
    if timed.makespan > now:
        exposed.append(Span(NO_KERNEL, now, timed.makespan))
    return Lanes(
        tuple(device),
        tuple(exposed),
        {channel: tuple(spans) for channel, spans in communicators.items()},
        tuple(launches),
        timed.makespan,
    )
