"""A stretch of a schedule that is decided anew while all before and after it stays as it is.

The ops of consecutive kernels, in some order of all kernels, may be partitioned and ordered in any way that suits
themselves: no path leads from them to what runs before. What the rest of the schedule fixes is only memory: which
buffers are there at the start, which are still needed at the end, and how many bytes are live throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optfuse.problem.cost import topology
from optfuse.problem.instance import Instance
from optfuse.problem.legality import bits, mask_of
from optfuse.problem.recompute import copyable
from optfuse.problem.solution import Kernel
from optfuse.solver.joint.columns import ColumnMaker
from optfuse.solver.memory.order_problem import lifetimes, order_problem


@dataclass(frozen=True, slots=True)
class Storage:
    """A buffer with memory of its own (others may alias it) that can begin or end within the stretch."""

    buffer: int
    bytes: int
    from_start: bool
    to_end: bool


@dataclass(frozen=True, slots=True)
class Scope:
    """What is to be decided, and what the rest of the schedule asks of it.

    Attributes:
        instance: The whole problem.
        ops: The ops that kernels of the stretch may hold, as a bitmask.
        duty: Those of them that must be computed here.
        copies: Those that may be computed several times.
        owed: Temporaries that must be written here.
        given: Temporaries that were written before and are still there.
        gone: Storages that live only before or after.
        storages: What may begin or end here.
        root: The storage of each buffer.
        base: Bytes that are live throughout.
    """

    instance: Instance
    ops: int
    duty: int
    copies: int
    owed: frozenset[int]
    given: frozenset[int]
    gone: frozenset[int]
    storages: tuple[Storage, ...]
    root: tuple[int, ...]
    base: int


def whole_scope(instance: Instance, *, recompute: bool = False) -> Scope:
    """Everything is to be decided."""
    every = (1 << len(instance.ops)) - 1
    copies = copyable(instance) if recompute else 0
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
    owed = frozenset(buffer for buffer in _made(instance, copies) if instance.buffers[buffer].output)
    none: frozenset[int] = frozenset()
    return Scope(instance, every, every & ~copies, copies, owed, none, none, tuple(storages), root, base)


def stretch(instance: Instance, kernels: Sequence[Kernel], first: int, last: int, copies: int = 0) -> Scope:
    """The scope of ``kernels[first:last]``, kernels being in an order in which they may run.

    ``copies``: ops that may be computed several times. Those of earlier kernels may be computed here once more, as far
    as what they need is still there, but what they make is not written again.
    """
    root = _roots(instance)
    made = {buffer for kernel in kernels[first:last] for buffer in kernel.writes}
    maker = ColumnMaker(instance)
    later = {buffer for kernel in kernels[last:] for buffer in maker.takes(mask_of(kernel.ops), kernel.scheme)}
    owed = frozenset(buffer for buffer in made if buffer in later or instance.buffers[buffer].output)
    inside = mask_of(op for kernel in kernels[first:last] for op in kernel.ops)
    earlier = mask_of(op for kernel in kernels[:first] for op in kernel.ops)

    problem = order_problem(instance, kernels)
    base = problem.base
    storages: list[Storage] = []
    gone: set[int] = set()
    for storage, (born, dead) in zip(problem.storages, lifetimes(problem, range(len(kernels))), strict=True):
        early = born < first or storage.from_start
        if born >= last or dead < first:
            gone.add(storage.buffer)
        elif early and dead >= last:
            base += storage.bytes
        else:
            storages.append(Storage(storage.buffer, storage.bytes, early, dead >= last))
    present = {storage.buffer for storage in problem.storages} - gone
    storages += [
        Storage(buffer, instance.buffers[buffer].bytes, from_start=False, to_end=False)
        for buffer in _made(instance, inside)
        if buffer not in present
    ]
    written = {buffer for kernel in kernels[:first] for buffer in kernel.writes}
    return Scope(
        instance=instance,
        ops=inside | copies & earlier,
        duty=inside & ~copies,
        copies=copies & (inside | earlier),
        owed=owed,
        given=frozenset(buffer for buffer in written if root[buffer] not in gone),
        gone=frozenset(gone),
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
