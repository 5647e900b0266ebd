"""Order problems of launches, each of one kernel or of several: a launch is one step of the memory plan."""

from __future__ import annotations

from collections.abc import Sequence

from optfuse.solver.memory.order_problem import OrderProblem


def launched(problem: OrderProblem, groups: Sequence[Sequence[int]]) -> OrderProblem:
    """The problem in which each group of kernels, in the order that they run, is one kernel."""
    number = {kernel: k for k, group in enumerate(groups) for kernel in group}
    before: list[set[int]] = [{number[b] for kernel in group for b in problem.before[kernel]} for group in groups]
    after: list[set[int]] = [{number[a] for kernel in group for a in problem.after[kernel]} for group in groups]
    return OrderProblem(
        tuple(tuple(sorted(mine)) for mine in before),
        tuple(tuple(sorted(mine)) for mine in after),
        tuple(
            storage._replace(users=tuple(sorted({number[user] for user in storage.users})))
            for storage in problem.storages
        ),
        problem.base,
        tuple(min(problem.anchor[kernel] for kernel in group) for group in groups),
    )


def in_launches(
    problem: OrderProblem, order: Sequence[int], launches: Sequence[Sequence[int]]
) -> tuple[OrderProblem, Sequence[int]]:
    """The problem of launches instead of kernels, and their order. ``launches``: positions of those that share one."""
    if not launches:
        return problem, order
    groups = [[order[position] for position in launch] for launch in all_launches(len(order), launches)]
    return launched(problem, groups), range(len(groups))


def all_launches(count: int, launches: Sequence[Sequence[int]]) -> list[list[int]]:
    """The positions of the kernels of each launch, of several kernels (``launches``) or of one, in order."""
    joined = {position for launch in launches for position in launch[1:]}
    found: list[list[int]] = []
    for position in range(count):
        if position in joined:
            found[-1].append(position)
        else:
            found.append([position])
    return found
