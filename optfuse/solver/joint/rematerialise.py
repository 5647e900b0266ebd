"""Rematerialisation: compute a value again instead of keeping it live between distant uses, outside any window."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from optfuse.problem.cost import kernel_cost
from optfuse.problem.instance import Instance
from optfuse.problem.legality import bits, is_legal_but_for_paths, mask_of
from optfuse.problem.solution import Kernel
from optfuse.solver.joint.columns import ColumnBuilder
from optfuse.solver.memory.order_problem import lifetimes, live_bytes, order_problem

#: Values tried for one move, the largest first.
TRIES = 12


def recompute_to_shrink(
    instance: Instance, kernels: Sequence[Kernel], at: int, recomputable: int
) -> tuple[Kernel, ...] | None:
    """The schedule with one value recomputed after position ``at``: fewer bytes live there, and no higher peak.

    The value is the one that costs least for each byte saved; None when there is none.
    """
    problem = order_problem(instance, kernels)
    spans = lifetimes(problem, range(len(kernels)))
    live = live_bytes(problem, range(len(kernels)))
    cost = sum(kernel_cost(instance, k.ops, k.scheme, k.writes) for k in kernels)
    builder = ColumnBuilder(instance)
    over = [
        (storage.bytes, storage.buffer)
        for storage, (first, last) in zip(problem.storages, spans, strict=True)
        if storage.bytes and first < at <= last and not storage.from_start and not storage.to_end
    ]
    best: tuple[float, tuple[Kernel, ...]] | None = None
    for _, buffer in sorted(over, reverse=True)[:TRIES]:
        op = next(
            (op for op in bits(recomputable) for w in instance.ops[op].offers[0].writes if w.buffer == buffer), None
        )
        new = None if op is None else _recomputed_by_users(instance, builder, kernels, at, op)
        if new is None:
            continue
        then = live_bytes(order_problem(instance, new), range(len(new)))
        saved = live[at] - then[at]
        if saved <= 0 or max(then) > max(live):
            continue
        price = (sum(kernel_cost(instance, k.ops, k.scheme, k.writes) for k in new) - cost) / saved
        if best is None or price < best[0]:
            best = (price, new)
    return None if best is None else best[1]


def _recomputed_by_users(
    instance: Instance, builder: ColumnBuilder, kernels: Sequence[Kernel], at: int, op: int
) -> tuple[Kernel, ...] | None:
    """The kernels with an op recomputed in each from ``at`` on that loads its value; None when one cannot hold it."""
    masks = [mask_of(kernel.ops) for kernel in kernels]
    buffer = instance.ops[op].offers[0].writes[0].buffer
    for position in range(at, len(kernels)):
        kernel = kernels[position]
        if buffer in builder.loads(masks[position], kernel.scheme):
            masks[position] |= 1 << op
            ops = tuple(bits(masks[position]))
            offered = kernel.scheme in builder.index.offers[op]
            if not offered or not is_legal_but_for_paths(instance, ops, kernel.scheme):
                return None
    return _settled(instance, builder, masks, [kernel.scheme for kernel in kernels], op)


def _settled(
    instance: Instance, builder: ColumnBuilder, masks: list[int], schemes: Sequence[int], op: int
) -> tuple[Kernel, ...] | None:
    """The kernels with their writes: of several that compute a value, the first writes it.

    The recomputed ``op`` is dropped from kernels in which it is no longer used. None when a kernel would load a value
    before any kernel writes it.
    """
    index = builder.index
    made = {write[0] for offer in index.priced[op].values() for write in offer.writes}
    wanted = any(made & set(builder.loads(mask, scheme)) for mask, scheme in zip(masks, schemes, strict=True))
    users = mask_of(user for user, _ in index.users[op])
    for position, mask in enumerate(masks):
        if mask >> op & 1 and not mask & users and not wanted:
            smaller = mask & ~(1 << op)
            if not smaller or is_legal_but_for_paths(instance, tuple(bits(smaller)), schemes[position]):
                masks[position] = smaller
        wanted = wanted and not mask >> op & 1
    loads = [set(builder.loads(mask, scheme)) for mask, scheme in zip(masks, schemes, strict=True)]
    taken_anywhere = set[int]().union(*loads)
    written: set[int] = set()
    found: list[Kernel] = []
    for mask, scheme, taken in zip(masks, schemes, loads, strict=True):
        if any(instance.buffers[b].kind == "temporary" and b not in written for b in taken):
            return None
        writes = {
            buffer
            for member in bits(mask)
            for buffer, _, _, always in index.priced[member][scheme].writes
            if (always or buffer in taken_anywhere) and buffer not in written
        }
        written |= writes
        if mask:
            found.append(Kernel(tuple(bits(mask)), scheme, tuple(sorted(writes))))
    return tuple(found)


def without_idle(instance: Instance, kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """The kernels without those that only recompute other kernels' ops and write nothing that is loaded."""
    builder = ColumnBuilder(instance)
    while True:
        runs = Counter(op for kernel in kernels for op in kernel.ops)
        loads = [set(builder.loads(mask_of(kernel.ops), kernel.scheme)) for kernel in kernels]
        for position, kernel in enumerate(kernels):
            wanted = set[int]().union(*loads[:position], *loads[position + 1 :])
            required_writes = any(instance.buffers[buffer].output or buffer in wanted for buffer in kernel.writes)
            if not required_writes and all(runs[op] > 1 for op in kernel.ops):
                kernels = (*kernels[:position], *kernels[position + 1 :])
                break
        else:
            return kernels
