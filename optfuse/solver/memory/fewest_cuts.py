"""The order with the fewest changes between kernels that a CUDA graph can hold and others."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence

from optfuse.errors import IllegalKernelError
from optfuse.solver.memory.order_problem import OrderProblem


def fewest_runs(problem: OrderProblem, marked: Collection[int]) -> list[int]:
    """A topological order with the fewest maximal runs of marked and of unmarked kernels.

    Take every kernel of one colour that is ready, then every one of the other colour, and so on; do so once for each
    first colour, and keep the order with fewer runs. Among ready kernels the earliest in the program runs first.

    This is optimal. Let the greedy order begin with colour c, and let any order begin with c as well (its run may be
    empty). By induction on k, after k runs greedy has placed a superset of what the other order has placed. In its next
    run, the other order places kernels of one colour whose predecessors lie in its first k runs or earlier in the same
    run; all these are placed by greedy or, in the order of the run, ready and of the run's colour, so greedy places
    them, too. So greedy has placed everything after no more runs than any order that begins with c, and every order
    begins with one of two colours.

    Raises:
        IllegalKernelError: When the kernels wait for each other in a cycle.
    """
    orders = [_alternating(problem, frozenset(marked), first=first) for first in (False, True)]
    return min(orders, key=lambda order: runs(order, marked))


def runs(order: Sequence[int], marked: Collection[int]) -> int:
    """The number of maximal runs of one colour."""
    colours = [kernel in marked for kernel in order]
    return sum(k == 0 or colours[k] != colours[k - 1] for k in range(len(colours)))


def _alternating(problem: OrderProblem, marked: frozenset[int], *, first: bool) -> list[int]:
    waiting = [len(mine) for mine in problem.before]
    ready: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
    for kernel, count in enumerate(waiting):
        if count == 0:
            ready[kernel in marked].append((problem.anchor[kernel], kernel))
    for heap in ready.values():
        heapq.heapify(heap)
    order: list[int] = []
    colour = first
    while ready[False] or ready[True]:
        while ready[colour]:
            kernel = heapq.heappop(ready[colour])[1]
            order.append(kernel)
            for later in problem.after[kernel]:
                waiting[later] -= 1
                if waiting[later] == 0:
                    heapq.heappush(ready[later in marked], (problem.anchor[later], later))
        colour = not colour
    if len(order) < len(waiting):
        stuck = sorted(problem.anchor[k] for k, count in enumerate(waiting) if count)
        raise IllegalKernelError(f"kernels wait for each other in a cycle, among those that start with ops {stuck[:8]}")
    return order
