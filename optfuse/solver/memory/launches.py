"""Decide which kernels of a schedule share a launch, and in which order launches run.

A launch waits for all that its kernels need, and what they make is alive from then on. So the order decides what can be
shared, and sharing may need more memory. ``share_launches`` moves kernels by up to a number of places in an order of
little memory, and looks for a large number with which hardly more memory is needed than without.

Kernels that may all share launches need as many launches as the longest chain of them has kernels (Mirsky): without a
limit on the places, all others that can run do so first, then all of these that can. Where large kernels are not alike,
a launch takes those of one form, and first of the form of which the fewest are still to come.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from optfuse.problem.cost import shared_saving
from optfuse.problem.instance import Instance
from optfuse.problem.launches import Launchable, launchable
from optfuse.problem.solution import Kernel
from optfuse.solver.memory.launch_order import launched
from optfuse.solver.memory.order_problem import OrderProblem, peak_bytes

#: The share of an order's peak that sharing launches may add: values of some bytes that live a launch longer.
MORE_MEMORY = 1 / 256


@dataclass(frozen=True, slots=True)
class Sharing:
    """How many launches the kernels need that may share one, and what that saves.

    Attributes:
        kernels: Kernels that may share a launch with another one.
        launches: Their launches.
        launches_bound: No order of these kernels has fewer launches, whatever memory it needs.
        saved_ps: What they save of the objective, in which each kernel has a launch of its own.
        bound: No schedule of any kernels takes less than so many picoseconds, whichever share launches.
    """

    kernels: int
    launches: int
    launches_bound: int
    saved_ps: int
    bound: int = 0


def share_launches(
    instance: Instance, kernels: Sequence[Kernel], problem: OrderProblem, order: Sequence[int], cap: int | None = None
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...], Sharing | None]:
    """An order of the kernels, the positions in it of those that share a launch, and what is known of these.

    ``problem`` and ``order`` are the kernels' own. The peak is at most the order's and ``MORE_MEMORY`` of that, or
    ``cap``.
    """
    peak = peak_bytes(problem, order)
    most_bytes = peak + int(MORE_MEMORY * peak)
    most_bytes = most_bytes if cap is None else min(most_bytes, max(peak, cap))
    kinds = [launchable(instance, kernel) for kernel in kernels]
    window = len(order) if sum(kind is not None for kind in kinds) > 1 else 0
    groups = [(number,) for number in order]
    while window > 1:
        found = grouped(problem, order, kinds, window)
        if len(found) == len(order):
            break
        if peak_bytes(launched(problem, found), range(len(found))) <= most_bytes:
            groups = found
            break
        window //= 2
    new_order = tuple(number for group in groups for number in group)
    launches: list[tuple[int, ...]] = []
    place = 0
    for group in groups:
        if len(group) > 1:
            launches.append(tuple(range(place, place + len(group))))
        place += len(group)
    if not launches:
        return tuple(order), (), None
    saved = shared_saving(instance, [kernels[number] for number in new_order], launches)
    count = sum(kind is not None for kind in kinds)
    own = count - sum(len(launch) - 1 for launch in launches)
    sharing = Sharing(count, own, fewest_launches(problem, order, kinds), saved)
    return new_order, tuple(launches), sharing


def grouped(
    problem: OrderProblem, order: Sequence[int], kinds: Sequence[Launchable | None], window: int
) -> list[tuple[int, ...]]:
    """The kernels of each launch, in the order that they run.

    A kernel runs when none is left that stands ``window`` places or more before it in ``order``.
    """
    place = {number: position for position, number in enumerate(order)}
    waiting = [len(mine) for mine in problem.before]
    left = Counter(kind for kind in kinds if kind is not None)
    alone: list[int] = []
    shared: set[int] = set()
    frontier, done = 0, [False] * len(order)
    groups: list[tuple[int, ...]] = []

    def release(number: int) -> None:
        if kinds[number] is None:
            heapq.heappush(alone, place[number])
        else:
            shared.add(place[number])

    def run(group: Sequence[int]) -> None:
        groups.append(tuple(group))
        for number in group:
            done[place[number]] = True
            for later in problem.after[number]:
                waiting[later] -= 1
                if not waiting[later]:
                    release(later)

    for number, count in enumerate(waiting):
        if not count:
            release(number)
    while frontier < len(order):
        if done[frontier]:
            frontier += 1
        elif alone and alone[0] < frontier + window:
            run([order[heapq.heappop(alone)]])
        else:
            ready = sorted(position for position in shared if position < frontier + window)
            kind_of = {position: kind for position in ready if (kind := kinds[order[position]]) is not None}
            kind = _kind_of_next(kind_of, left)
            chosen = [position for position in ready if kind_of[position] in (kind, replace(kind, forms=()))]
            shared.difference_update(chosen)
            left.subtract(kind_of[position] for position in chosen)
            run([order[position] for position in chosen])
    return groups


def _kind_of_next(ready: dict[int, Launchable], left: Counter[Launchable]) -> Launchable:
    """The kind of the large kernels in the next launch; that of small ones if no large one is ready."""
    first = min(ready)
    count = Counter(ready.values())
    earliest = {kind: position for position, kind in reversed(ready.items())}
    large = [kind for kind in count if kind.forms]
    return min(large, key=lambda kind: (left[kind] - count[kind], earliest[kind]), default=ready[first])


def fewest_launches(problem: OrderProblem, order: Sequence[int], kinds: Sequence[Launchable | None]) -> int:
    """A lower bound on the launches of the kernels that may share one, over all orders.

    Kernels of a chain have a launch each. On a device the chains of large kernels of different forms count together,
    since these share no launch.
    """
    total = 0
    for device in {kind.device for kind in kinds if kind is not None}:
        mine = [kind if kind is not None and kind.device == device else None for kind in kinds]
        forms = {kind.forms for kind in mine if kind is not None and kind.forms}
        of_form = {form: [kind is not None and kind.forms == form for kind in mine] for form in forms}
        apart = sum(_longest_chain(problem, order, counted) for counted in of_form.values())
        total += max(apart, _longest_chain(problem, order, [kind is not None for kind in mine]))
    return total


def _longest_chain(problem: OrderProblem, order: Sequence[int], counted: Sequence[bool]) -> int:
    length = [0] * len(order)
    for number in order:
        length[number] = max((length[b] for b in problem.before[number]), default=0) + counted[number]
    return max(length, default=0)
