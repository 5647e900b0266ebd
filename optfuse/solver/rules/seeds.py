"""The start of greedy fusion: the ops that run, in the groups that the user's rules fuse."""

from __future__ import annotations

import time
from collections.abc import Iterable

from optfuse.errors import IllegalKernelError
from optfuse.problem.cost import kernel_cost
from optfuse.problem.instance import Instance
from optfuse.solver.rules.conflict import as_written, conflict_error
from optfuse.solver.rules.groups import EXACT_SECONDS, Group, exact_groups, quick_groups


def seed_groups(instance: Instance) -> list[Group]:
    """The starting groups in topological order: single ops, and the kernels that the rules ask for.

    Raises:
        RuleConflictError: When no schedule obeys the rules: names a set that conflicts, no part of which does.
        IllegalKernelError: When this could not be decided in time.
    """
    try:
        return quick_groups(instance)
    except IllegalKernelError as error:
        status, groups = exact_groups(instance, time.monotonic() + EXACT_SECONDS)
        if status == "undecided":
            raise IllegalKernelError(f"{error} (whether larger kernels could obey them was not decided)") from error
        if status == "possible":
            return groups
        raise conflict_error(instance, as_written(instance)) from error


def cheapest_schemes(instance: Instance, groups: Iterable[Group]) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Groups as kernels (ops, scheme), each in the scheme in which it costs least."""
    return tuple((group.ops, _cheapest(instance, group)) for group in groups)


def first_schemes(instance: Instance, groups: Iterable[Group]) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Groups as kernels, each in the first legal scheme that its first op offers: for want of time to price them."""
    return tuple(
        (group.ops, next(o.scheme for o in instance.ops[group.ops[0]].offers if o.scheme in group.schemes))
        for group in groups
    )


def _cheapest(instance: Instance, group: Group) -> int:
    if len(group.schemes) == 1:
        return next(iter(group.schemes))
    return min((kernel_cost(instance, group.ops, scheme), scheme) for scheme in group.schemes)[1]
