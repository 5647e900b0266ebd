"""Orders without search: starts as early and waits as late as a sequence of kernels allows, and list scheduling."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from optfuse.solver.overlap.timeline import TimelineProblem, stretched


def with_events(problem: TimelineProblem, sequence: Sequence[int], behind: Sequence[int]) -> tuple[int, ...]:
    """The order that runs the device's kernels in ``sequence``, each start at once, each wait when it costs nothing.

    A wait whose transfer has not ended comes just before the first kernel that needs it. ``behind``: the least
    time from each kernel's launch to the end of all, see ``tails``.
    """
    rank = {kernel: position for position, kernel in enumerate(sequence)}

    def urgency(kernel: int, until: int, now: int) -> tuple[int, ...]:
        if not problem.is_event[kernel]:
            return (2, rank[kernel])
        return (0, -behind[kernel]) if until <= now else (3, until)

    return _dispatched(problem, urgency, sequence)


def list_order(problem: TimelineProblem, behind: Sequence[int]) -> tuple[int, ...]:
    """The order of a list schedule: of the kernels that need not wait, the one with the most time behind it.

    Source: R. L. Graham, Bounds on multiprocessing timing anomalies, 1969, with the critical path as priority.
    """
    place = {kernel: position for position, kernel in enumerate(problem.topological)}

    def urgency(kernel: int, until: int, now: int) -> tuple[int, ...]:
        if not problem.is_event[kernel]:
            return (2, -behind[kernel], place[kernel])
        return (0, -behind[kernel], place[kernel]) if until <= now else (3, until, place[kernel])

    return _dispatched(problem, urgency)


def _dispatched(
    problem: TimelineProblem, urgency: Callable[[int, int, int], tuple[int, ...]], sequence: Sequence[int] = ()
) -> tuple[int, ...]:
    """The order that always runs the ready kernel of least ``urgency(kernel, end of what it awaits, now)``.

    With a ``sequence`` the device's kernels run in this one and no other.
    """
    waiting = [len(mine) for mine in problem.before]
    ready = {kernel for kernel, count in enumerate(waiting) if not count}
    left = list(reversed(sequence))
    ended: dict[int, int] = {}
    free: dict[int, int] = {}
    order: list[int] = []
    now = last = 0
    while ready:
        allowed = [k for k in ready if problem.is_event[k] or not left or k == left[-1]]
        until = {k: max([ended.get(start, 0) for start in problem.awaited[k]], default=0) for k in allowed}
        kernel = min(allowed, key=lambda k: urgency(k, until[k], now))
        ready.remove(kernel)
        order.append(kernel)
        if left and kernel == left[-1]:
            left.pop()
        channel = problem.channel[kernel]
        if channel:
            ended[kernel] = free[channel] = max(now, free.get(channel, 0)) + problem.transfer[kernel]
            last = max(last, ended[kernel])
        else:
            now = max(now, until[kernel])
            now += stretched(problem.busy[kernel], last - now, problem.slowdown)
        for later in problem.after[kernel]:
            waiting[later] -= 1
            if not waiting[later]:
                ready.add(later)
    return tuple(order)


def kernels_alone(problem: TimelineProblem, order: Sequence[int]) -> tuple[int, ...]:
    """The device's kernels in an order, without starts and waits."""
    return tuple(kernel for kernel in order if not problem.is_event[kernel])
