"""Decide which kernels of a schedule share a launch, and in which order launches run.

A launch waits for all that its kernels need, and what they make is alive from then on. So the order decides what can be
shared, and sharing may need more memory. ``share_launches`` cuts an order of little memory into stretches, as long ones
as hardly more memory allows, and shares launches within each: at the ends of a stretch the same is alive as before.

Kernels that may all share launches need as many launches as the longest chain of them has kernels (Mirsky): in a
stretch, all others that can run do so first, then all of these that can. Where large kernels are not alike, a launch
takes those of one form, and first of the form of which the fewest are still to come.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from optfuse.problem.cost import shared_saving
from optfuse.problem.instance import Instance
from optfuse.problem.launches import Launchable, launchable
from optfuse.problem.solution import Kernel, Solution
from optfuse.solver.memory.order_problem import OrderProblem, lifetimes, order_problem, peak_bytes

#: Kernels share launches where that saves so many per cent of their time: the order that it needs keeps less in caches.
LEAST_SHARED_PERCENT = 5
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
    groups = [(number,) for number in order]
    if sum(kind is not None for kind in kinds) > 1:
        groups = fewest_in_stretches(Stretches(problem, order, kinds), most_bytes)
    new_order = tuple(number for group in groups for number in group)
    launches = _several(groups)
    if not launches:
        return tuple(order), (), None
    saved = shared_saving(instance, [kernels[number] for number in new_order], launches)
    count = sum(kind is not None for kind in kinds)
    own = count - sum(len(launch) - 1 for launch in launches)
    sharing = Sharing(count, own, fewest_launches(problem, order, kinds), saved)
    return new_order, launches, sharing


def is_worth_it(solution: Solution, saved_ps: int) -> bool:
    """Whether a solution's kernels save enough by sharing launches for what the order that it needs may cost."""
    return 100 * saved_ps >= LEAST_SHARED_PERCENT * solution.objective


def may_share(instance: Instance, solution: Solution) -> bool:
    """Whether sharing launches would be worth it for a solution's kernels where memory does not matter."""
    kinds = [launchable(instance, kernel) for kernel in solution.kernels]
    if sum(kind is not None for kind in kinds) < 2:
        return False
    groups = grouped(order_problem(instance, solution.kernels), range(len(kinds)), kinds)
    ordered = [solution.kernels[number] for group in groups for number in group]
    return is_worth_it(solution, shared_saving(instance, ordered, _several(groups)))


def _several(groups: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """The positions of the kernels of each launch that has more than one."""
    ends = list(accumulate(map(len, groups)))
    return tuple(tuple(range(end - len(g), end)) for g, end in zip(groups, ends, strict=True) if len(g) > 1)


def grouped(problem: OrderProblem, stretch: Sequence[int], kinds: Sequence[Launchable | None]) -> list[tuple[int, ...]]:
    """The kernels of each launch, in the order that they run, for kernels that follow each other in an order."""
    place = {number: position for position, number in enumerate(stretch)}
    waiting = {number: sum(earlier in place for earlier in problem.before[number]) for number in stretch}
    left = Counter(kind for number in stretch if (kind := kinds[number]) is not None)
    alone: list[int] = []
    shared: set[int] = set()
    groups: list[tuple[int, ...]] = []

    def release(number: int) -> None:
        if kinds[number] is None:
            heapq.heappush(alone, place[number])
        else:
            shared.add(place[number])

    def run(group: Sequence[int]) -> None:
        groups.append(tuple(group))
        for number in group:
            for later in problem.after[number]:
                if later in place:
                    waiting[later] -= 1
                    if not waiting[later]:
                        release(later)

    for number in [number for number, count in waiting.items() if not count]:
        release(number)
    while alone or shared:
        if alone:
            run([stretch[heapq.heappop(alone)]])
        else:
            kind_of = {position: kind for position in sorted(shared) if (kind := kinds[stretch[position]]) is not None}
            kind = _kind_of_next(kind_of, left)
            chosen = [position for position in kind_of if kind_of[position] in (kind, replace(kind, forms=()))]
            shared.difference_update(chosen)
            left.subtract(kind_of[position] for position in chosen)
            run([stretch[position] for position in chosen])
    return groups


class Stretches:
    """The launches of stretches of an order, and the bytes that they need, which depend on nothing outside."""

    def __init__(self, problem: OrderProblem, order: Sequence[int], kinds: Sequence[Launchable | None]) -> None:
        """Find which storages are alive before each kernel."""
        self.order = order
        self._problem, self._kinds = problem, kinds
        self._spans = lifetimes(problem, order)
        self._touched: list[list[int]] = [[] for _ in order]
        change = [0] * (len(order) + 2)
        self._unused = 0
        for number, (storage, (first, last)) in enumerate(zip(problem.storages, self._spans, strict=True)):
            for user in storage.users:
                self._touched[user].append(number)
            change[first + (not storage.from_start)] += storage.bytes
            change[last + 1] -= storage.bytes
            self._unused += 0 if storage.users or storage.to_end else storage.bytes
        self._alive = list(accumulate(change, initial=problem.base))[1:]

    def launches(self, start: int, end: int) -> list[tuple[int, ...]]:
        """The launches of the kernels from a position up to another."""
        return grouped(self._problem, self.order[start:end], self._kinds)

    def peak(self, start: int, end: int, launches: Sequence[Sequence[int]]) -> int:
        """The most bytes alive while these launches run."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for place, launch in enumerate(launches):
            for number in (number for kernel in launch for number in self._touched[kernel]):
                first.setdefault(number, place)
                last[number] = place
        change = [0] * (len(launches) + 1)
        change[1] -= 0 if start else self._unused  # alive while the first launch runs
        for number, place in first.items():
            storage, (begun, done) = self._problem.storages[number], self._spans[number]
            if begun >= start and not storage.from_start:
                change[place] += storage.bytes
            if done < end and not storage.to_end:
                change[last[number] + 1] -= storage.bytes
        return max(accumulate(change[:-1], initial=self._alive[start]))


def fewest_in_stretches(stretches: Stretches, most_bytes: int) -> list[tuple[int, ...]]:
    """The launches of an order with at most so many bytes alive: of two ways to cut it the one with fewer launches."""
    whole = stretches.launches(0, len(stretches.order))
    if stretches.peak(0, len(stretches.order), whole) <= most_bytes:
        return whole
    return min(_halved(stretches, most_bytes), _lengthened(stretches, most_bytes), key=len)


def _halved(stretches: Stretches, most_bytes: int) -> list[tuple[int, ...]]:
    """The launches where a stretch that needs too much memory is cut in two, again and again."""
    found: list[tuple[int, ...]] = []
    waiting = [(0, len(stretches.order))]
    while waiting:
        start, end = waiting.pop()
        launches = stretches.launches(start, end)
        if end - start == 1 or stretches.peak(start, end, launches) <= most_bytes:
            found += launches
        else:
            middle = (start + end) // 2
            waiting += [(middle, end), (start, middle)]
    return found


def _lengthened(stretches: Stretches, most_bytes: int) -> list[tuple[int, ...]]:
    """The launches where one stretch after the other is as long as memory allows."""
    found: list[tuple[int, ...]] = []
    start, count = 0, len(stretches.order)
    while start < count:
        length, launches = 1, stretches.launches(start, start + 1)
        too_long = count - start + 1
        while length + 1 < too_long:
            tried = min(2 * length, (length + too_long) // 2)
            longer = stretches.launches(start, start + tried)
            if stretches.peak(start, start + tried, longer) <= most_bytes:
                length, launches = tried, longer
            else:
                too_long = tried
        found += launches
        start += length
    return found


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
