"""Where greedy fusion starts: which ops run, and which of them the user's rules put together from the start."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from optfuse.errors import IllegalKernelError
from optfuse.problem.instance import Instance
from optfuse.problem.legality import bits, common_schemes, is_legal, legal_index, mask_of, why_illegal


@dataclass(frozen=True, slots=True)
class Group:
    """Ops in one kernel, the schemes in which that is legal, and whether nothing may join them."""

    ops: tuple[int, ...]
    schemes: frozenset[int]
    closed: bool


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


def seed_groups(instance: Instance) -> list[Group]:
    """The starting groups in topological order: single ops, and the kernels that the rules ask for.

    Raises:
        IllegalKernelError: When such a kernel may not be, or two of them wait for each other.
    """
    active = first_alternatives(instance)
    if not instance.rules.fuse and not instance.rules.single_kernel:
        return [_group(instance, 1 << op) for op in bits(active)]
    masks = _joined(instance, active)
    groups = [_group(instance, mask) for mask in masks]
    owner = {op: number for number, group in enumerate(groups) for op in group.ops}
    after: list[set[int]] = [set() for _ in groups]
    for edge in instance.edges:
        if edge.src in owner and edge.dst in owner and owner[edge.src] != owner[edge.dst]:
            after[owner[edge.src]].add(owner[edge.dst])
    waiting = [0] * len(groups)
    for targets in after:
        for target in targets:
            waiting[target] += 1
    heap = [(group.ops[0], number) for number, group in enumerate(groups) if not waiting[number]]
    heapq.heapify(heap)
    ordered: list[Group] = []
    while heap:
        _, number = heapq.heappop(heap)
        ordered.append(groups[number])
        for target in after[number]:
            waiting[target] -= 1
            if not waiting[target]:
                heapq.heappush(heap, (groups[target].ops[0], target))
    if len(ordered) < len(groups):
        stuck = [groups[n].ops for n, count in enumerate(waiting) if count and len(groups[n].ops) > 1]
        names = "; ".join(", ".join(instance.ops[op].name for op in ops) for ops in stuck)
        raise IllegalKernelError(f"the kernels that the rules ask for wait for each other: {names}; drop one rule")
    return ordered


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
    taken = 0
    for mask in masks:
        taken |= mask
    return masks + [1 << op for op in bits(active & ~taken)]


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
        names = ", ".join(instance.ops[op].name for op in ops)
        reason = reasons[0] if reasons else "they have no scheme in common"
        raise IllegalKernelError(f"the rules ask for one kernel of {names}, but {reason}; change the rules")
    closed = bool(mask & index.barrier) or bool(index.exact[ops[0]])
    return Group(ops, legal, closed)
