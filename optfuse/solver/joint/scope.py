"""A window of a schedule that is optimized again while all before and after it stays fixed.

The ops of consecutive kernels may be partitioned and ordered freely: no path leads from them to earlier kernels. The
rest of the schedule fixes memory only: which buffers are live at the start, which are needed at the end, and how many
bytes are live throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optfuse.problem.cost import topology
from optfuse.problem.instance import Instance
from optfuse.problem.op_masks import bits, mask_of
from optfuse.problem.recompute import recomputable_ops
from optfuse.problem.solution import Kernel
from optfuse.solver.joint.columns import ColumnBuilder
from optfuse.solver.memory.order_problem import lifetimes, order_problem


@dataclass(frozen=True, slots=True)
class Storage:
    """A buffer with memory of its own (others may alias it) whose lifetime can begin or end within the window."""

    buffer: int
    bytes: int
    from_start: bool
    to_end: bool


@dataclass(frozen=True, slots=True)
class Scope:
    """The ops to decide, and the constraints of the rest of the schedule on them.

    Attributes:
        instance: The whole problem.
        ops: The ops that kernels of the window may hold, as a bitmask.
        required: Those of them that must be computed here.
        recomputable: Those that may be computed several times.
        required_writes: Temporaries that must be written here.
        stored: Temporaries that were written before and are still live.
        absent: Storages that live only before or after.
        storages: Storages whose lifetime may begin or end here.
        root: The storage of each buffer.
        base: Bytes that are live throughout.
    """

    instance: Instance
    ops: int
    required: int
    recomputable: int
    required_writes: frozenset[int]
    stored: frozenset[int]
    absent: frozenset[int]
    storages: tuple[Storage, ...]
    root: tuple[int, ...]
    base: int


def whole_scope(instance: Instance, *, recompute: bool = False) -> Scope:
    """The scope of the whole problem."""
    every = (1 << len(instance.ops)) - 1
    recomputable = recomputable_ops(instance) if recompute else 0
    root = _roots(instance)
    kept = {root[number] for number, buffer in enumerate(instance.buffers) if buffer.output}
    storages: list[Storage] = []
    base = 0
    for number, buffer in enumerate(instance.buffers):
        if buffer.alias is not None:
            continue
        if buffer.kind != "temporary" and (not buffer.donated or number in kept):
            base += buffer.bytes
        else:
            storages.append(Storage(number, buffer.bytes, buffer.donated, number in kept))
    required_writes = frozenset(buffer for buffer in _made(instance, recomputable) if instance.buffers[buffer].output)
    none: frozenset[int] = frozenset()
    return Scope(
        instance, every, every & ~recomputable, recomputable, required_writes, none, none, tuple(storages), root, base
    )


def window_scope(instance: Instance, kernels: Sequence[Kernel], first: int, last: int, recomputable: int = 0) -> Scope:
    """The scope of ``kernels[first:last]``, kernels being in an order in which they may run.

    ``recomputable``: ops that may be computed several times. Those of earlier kernels may be computed again here while
    their inputs are live, but their values are not written again.
    """
    root = _roots(instance)
    made = {buffer for kernel in kernels[first:last] for buffer in kernel.writes}
    builder = ColumnBuilder(instance)
    later = {buffer for kernel in kernels[last:] for buffer in builder.loads(mask_of(kernel.ops), kernel.scheme)}
    required_writes = frozenset(buffer for buffer in made if buffer in later or instance.buffers[buffer].output)
    inside = mask_of(op for kernel in kernels[first:last] for op in kernel.ops)
    earlier = mask_of(op for kernel in kernels[:first] for op in kernel.ops)

    problem = order_problem(instance, kernels)
    base = problem.base
    storages: list[Storage] = []
    absent: set[int] = set()
    for storage, (born, dead) in zip(problem.storages, lifetimes(problem, range(len(kernels))), strict=True):
        early = born < first or storage.from_start
        if born >= last or dead < first:
            absent.add(storage.buffer)
        elif early and dead >= last:
            base += storage.bytes
        else:
            storages.append(Storage(storage.buffer, storage.bytes, early, dead >= last))
    present = {storage.buffer for storage in problem.storages} - absent
    storages += [
        Storage(buffer, instance.buffers[buffer].bytes, from_start=False, to_end=False)
        for buffer in _made(instance, inside)
        if buffer not in present
    ]
    written = {buffer for kernel in kernels[:first] for buffer in kernel.writes}
    return Scope(
        instance=instance,
        ops=inside | recomputable & earlier,
        required=inside & ~recomputable,
        recomputable=recomputable & (inside | earlier),
        required_writes=required_writes,
        stored=frozenset(buffer for buffer in written if root[buffer] not in absent),
        absent=frozenset(absent),
        storages=tuple(storages),
        root=root,
        base=base,
    )


def _roots(instance: Instance) -> tuple[int, ...]:
    return tuple(number if buffer.alias is None else buffer.alias for number, buffer in enumerate(instance.buffers))


def _made(instance: Instance, ops: int) -> list[int]:
    """The temporaries that some ops make, ascending."""
    index = topology(instance)
    found = {write[0] for op in bits(ops) for offer in index.priced[op].values() for write in offer.writes}
    return sorted(buffer for buffer in found if instance.buffers[buffer].kind == "temporary")
