"""The order in which communication runs beside computation: the least makespan within the memory cap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optfuse.problem.instance import Instance
from optfuse.problem.solution import Kernel
from optfuse.solver.control.clock import WALL, Clock
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.memory.order_problem import OrderProblem, peak_bytes
from optfuse.solver.overlap.list_schedule import kernels_alone, list_order, with_events
from optfuse.solver.overlap.timeline import TimelineProblem, least_makespan, tails, timeline, timeline_problem

#: Beyond so many kernels bound and list schedules, which take quadratic time, would take more than some seconds.
MAX_KERNELS = 10_000
#: Beyond so many, CP-SAT's model takes longer to build and presolve than the order has time.
MODEL_KERNELS = 400


@dataclass(frozen=True, slots=True)
class Overlap:
    """Computation and communication of a schedule in time, in picoseconds under the model.

    Attributes:
        makespan: From the begin of the first kernel to the end of the last kernel and transfer.
        exposed: What of it the device runs no kernel, for it waits for communication.
        bound: No order of the chosen kernels, with collectives started as traced, takes less.
        transfers: All communication, one after the other.
        before: The makespan in the order of least memory.
    """

    makespan: int
    exposed: int
    bound: int
    transfers: int
    before: int

    @property
    def gap(self) -> float:
        """(makespan - bound) / makespan."""
        return (self.makespan - self.bound) / self.makespan if self.makespan else 0.0


def transfers(instance: Instance) -> bool:
    """Whether some op communicates for a time that is known."""
    return any(op.transfer_ps for op in instance.ops)


def unproven(instance: Instance, found: Overlap | None) -> list[str]:
    """What was not done or not proven, a line each."""
    if found is None:
        too_many = f"overlap: communication does not count for the order beyond {MAX_KERNELS:,} kernels"
        return [too_many] if transfers(instance) else []
    if found.makespan == found.bound:
        return []
    return [
        f"overlap: {found.makespan / 1e6:.1f} us not proven least; no order takes less than {found.bound / 1e6:.1f} us"
    ]


def overlapped(
    instance: Instance,
    kernels: Sequence[Kernel],
    problem: OrderProblem,
    order: Sequence[int],
    options: SolveOptions,
    deadline: float,
    clock: Clock = WALL,
) -> tuple[tuple[int, ...], Overlap] | None:
    """The order of least makespan found, no slower than ``order``, and its figures.

    None where nothing communicates, or there are too many kernels. Among equally fast orders the one of the lower peak.
    A peak above the cap, or above the device's memory, is refused. ``options.order`` "program" keeps ``order``.
    """
    if not transfers(instance) or len(kernels) > MAX_KERNELS:
        return None
    timed = timeline_problem(instance, kernels, problem, order)
    bound = least_makespan(timed)
    best = tuple(order)
    if options.order == "memory":
        limit = _memory_limit(instance, peak_bytes(problem, order))
        behind, _ = tails(timed)
        listed = list_order(timed, behind)
        sequences = [kernels_alone(timed, each) for each in (order, listed)]
        best = _fastest(timed, problem, [best, listed, *(with_events(timed, s, behind) for s in sequences)], limit)
        slower = timeline(timed, best).makespan > bound
        if slower and options.solver == "cpsat" and len(kernels) <= MODEL_KERNELS and clock.now() < deadline:
            from optfuse.solver.overlap.overlap_model import best_order

            searched, bound = best_order(timed, best, bound, options, deadline, clock)
            tidied = with_events(timed, kernels_alone(timed, searched), behind)
            best = _fastest(timed, problem, [best, searched, tidied], limit)
    found = timeline(timed, best)
    figures = Overlap(
        makespan=found.makespan,
        exposed=found.idle,
        bound=min(bound, found.makespan),
        transfers=sum(timed.transfer),
        before=timeline(timed, order).makespan,
    )
    return best, figures


def _memory_limit(instance: Instance, least: int) -> int | None:
    """The most bytes that an order may need; the order of least memory may, whatever the device has."""
    limits = [device.memory_bytes for device in instance.devices[:1] if device.memory_bytes]
    cap = instance.rules.peak_memory
    limits += [] if cap is None else [cap]
    return max(least, min(limits)) if limits else None


def _fastest(
    timed: TimelineProblem, problem: OrderProblem, orders: Sequence[tuple[int, ...]], limit: int | None
) -> tuple[int, ...]:
    """The order of least makespan within the memory limit, of the lowest peak among equals; the first is within it."""
    peaks = [peak_bytes(problem, order) for order in orders]
    within = [k for k, peak in enumerate(peaks) if k == 0 or limit is None or peak <= limit]
    return orders[min(within, key=lambda k: (timeline(timed, orders[k]).makespan, peaks[k], k))]
