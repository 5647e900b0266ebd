"""The groups of ops that the user's rules fuse: the named ops and the ops on paths between them.

Where such a group is no legal kernel, a larger one may be; the model of ``solver.rules.feasible`` decides that exactly.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from optfuse.errors import IllegalKernelError
from optfuse.problem.instance import Instance
from optfuse.problem.legality import common_schemes, is_legal, legal_index, listed, why_illegal
from optfuse.problem.op_masks import bits, mask_of
from optfuse.solver.memory.order_problem import list_schedule


@dataclass(frozen=True, slots=True)
class Group:
    """Ops in one kernel, the schemes in which that is legal, and whether nothing may join them."""

    ops: tuple[int, ...]
    schemes: frozenset[int]
    closed: bool


Status = Literal["possible", "impossible", "undecided"]

#: Seconds for the exact answer, at most.
EXACT_SECONDS = 10.0


def first_alternatives(instance: Instance) -> int:
    """The ops that run, as a mask: of each variant the first alternative that holds every op the rules name."""
    index = legal_index(instance)
    named = mask_of(op for pair in instance.rules.fuse for op in pair)
    named |= mask_of(op for group in instance.rules.single_kernel for op in group)
    active = index.mandatory
    for options in index.alternatives:
        wanted = 0
        for option in options:
            wanted |= option & named
        active |= next((option for option in options if not wanted & ~option), options[0])
    return active


def rules_status(instance: Instance, deadline: float | None = None) -> Status:
    """Whether some schedule obeys the rules of an instance, its memory cap aside."""
    try:
        quick_groups(instance)
    except IllegalKernelError:
        exact = time.monotonic() + EXACT_SECONDS
        return exact_groups(instance, exact if deadline is None else min(deadline, exact))[0]
    return "possible"


def exact_groups(instance: Instance, deadline: float) -> tuple[Status, list[Group]]:
    # ortools takes most of a second to import, and this is rarely needed.
    from optfuse.solver.rules.feasible import kernels_asked_for, ruled_part

    part = ruled_part(instance)
    asked = kernels_asked_for(part.shape.problem, deadline)
    if asked.status != "possible":
        return asked.status, []
    inside = mask_of(part.ops)
    active = legal_index(instance).mandatory & ~inside | mask_of(part.ops[op] for op in bits(asked.active))
    masks = [mask_of(part.ops[op] for op in ops) for ops, _ in asked.kernels]
    return "possible", _ordered(instance, _with_single_ops(masks, active))


def quick_groups(instance: Instance) -> list[Group]:
    """The starting groups: single ops, and for each rule its ops with those on paths between them.

    Raises:
        IllegalKernelError: When such a kernel is illegal, or two of them form a cycle; a larger one may still be legal.
    """
    if not instance.rules.fuse and not instance.rules.single_kernel:
        running = bits(first_alternatives(instance)) if instance.variants else range(len(instance.ops))
        barrier = set(instance.rules.barrier)
        return [Group((op,), frozenset([o.scheme for o in instance.ops[op].offers]), op in barrier) for op in running]
    active = first_alternatives(instance)
    return _ordered(instance, _joined(instance, active))


def _ordered(instance: Instance, masks: Iterable[int]) -> list[Group]:
    """The groups in a topological order.

    Raises:
        IllegalKernelError: When they form a cycle, or one of them is no legal kernel.
    """
    groups = [_group(instance, mask) for mask in masks]
    owner = {op: number for number, group in enumerate(groups) for op in group.ops}
    after: list[set[int]] = [set() for _ in groups]
    for edge in instance.edges:
        if edge.src in owner and edge.dst in owner and owner[edge.src] != owner[edge.dst]:
            after[owner[edge.src]].add(owner[edge.dst])
    order = list_schedule(after, [group.ops[0] for group in groups])
    if len(order) < len(groups):
        stuck = [group.ops for number, group in enumerate(groups) if number not in order and len(group.ops) > 1]
        names = "; ".join(listed(instance, ops) for ops in stuck)
        raise IllegalKernelError(f"the kernels that the rules ask for wait for each other: {names}")
    return [groups[number] for number in order]


def _joined(instance: Instance, active: int) -> list[int]:
    """The active ops, grouped by the rules; a group of ``fuse`` also takes in what lies on paths between its ops."""
    reach = legal_index(instance).reach(active)
    exact = [mask_of(group) for group in instance.rules.single_kernel]
    masks = [mask_of(pair) for pair in instance.rules.fuse] + exact
    masks = [mask for mask in masks if mask & active]
    settled = False
    while not settled:
        settled = True
        masks = [mask if mask in exact else mask | reach.between(mask) for mask in masks]
        merged: list[int] = []
        for mask in masks:
            for place, other in enumerate(merged):
                if other & mask:
                    merged[place] |= mask
                    settled = settled and not mask & ~other
                    break
            else:
                merged.append(mask)
        settled = settled and len(merged) == len(masks)
        masks = merged
    for mask in masks:
        if mask & ~active:
            names = listed(instance, list(bits(mask)))
            raise IllegalKernelError(f"the rules ask for one kernel of {names}, not all of which can run")
    return _with_single_ops(masks, active)


def _with_single_ops(masks: Sequence[int], active: int) -> list[int]:
    taken = 0
    for mask in masks:
        taken |= mask
    return [*masks, *(1 << op for op in bits(active & ~taken))]


def _group(instance: Instance, mask: int) -> Group:
    """A group with its legal schemes.

    Raises:
        IllegalKernelError: When there is none.
    """
    index = legal_index(instance)
    ops = tuple(bits(mask))
    offered = common_schemes(instance, ops)
    legal = frozenset(scheme for scheme in offered if is_legal(instance, ops, scheme))
    if not legal:
        reasons = sorted({why_illegal(instance, ops, scheme) or "" for scheme in offered})
        names = listed(instance, ops)
        reason = reasons[0] if reasons else "they have no scheme in common"
        raise IllegalKernelError(f"the rules ask for one kernel of {names}, but {reason}")
    closed = bool(mask & index.barrier) or bool(index.exact[ops[0]])
    return Group(ops, legal, closed)
