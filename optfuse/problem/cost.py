"""The price of a kernel in integer picoseconds: the one function that greedy, solver, checker and report share.

cost = launch + max(memory time, compute time).

Memory time counts each distinct footprint read once a kernel and each buffer written once a kernel. It is dearer when
access is strided or gathered, when a looped reduction reads its inputs again in a later pass, and when a reduction has
too few programs to fill the device; cheaper when the bytes come from L2 (small temporaries, second passes).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from optfuse.problem.instance import AccessClass, Device, Instance, Offer, Read, Work

MIB = 1 << 20
GOP = 1 << 30


@dataclass(frozen=True, slots=True)
class Price:
    """What a kernel costs and why. Times in picoseconds, sizes in bytes (each footprint once, re-reads excluded)."""

    launch: int
    memory: int
    compute: int
    read_bytes: int
    write_bytes: int

    @property
    def total(self) -> int:
        """Picoseconds, launch included."""
        return self.launch + max(self.memory, self.compute)


@dataclass(frozen=True, slots=True)
class Topology:
    """Adjacency of an instance, by op: edges in and out, and the offers by scheme."""

    ins: tuple[tuple[int, ...], ...]
    outs: tuple[tuple[int, ...], ...]
    offers: tuple[Mapping[int, Offer], ...]


@lru_cache(maxsize=64)
def topology(instance: Instance) -> Topology:
    """Index the edges (by position in ``instance.edges``) and the offers of every op."""
    ins: list[list[int]] = [[] for _ in instance.ops]
    outs: list[list[int]] = [[] for _ in instance.ops]
    for position, edge in enumerate(instance.edges):
        ins[edge.dst].append(position)
        outs[edge.src].append(position)
    offers = tuple({offer.scheme: offer for offer in op.offers} for op in instance.ops)
    return Topology(tuple(map(tuple, ins)), tuple(map(tuple, outs)), offers)


def default_writes(instance: Instance, ops: Collection[int], scheme: int) -> tuple[int, ...]:
    """Buffers that a kernel must leave in memory when no op is computed twice: outputs, and values used outside it."""
    index = topology(instance)
    inside = set(ops)
    needed: set[int] = set()
    for op in inside:
        outside = {instance.edges[e].buffer for e in index.outs[op] if instance.edges[e].dst not in inside}
        for write in index.offers[op][scheme].writes:
            buffer = instance.buffers[write.buffer]
            if buffer.output or buffer.kind != "temporary" or write.buffer in outside:
                needed.add(write.buffer)
    return tuple(sorted(needed))


def kernel_price(instance: Instance, ops: Collection[int], scheme: int, writes: Iterable[int] | None = None) -> Price:
    """Price a kernel. ``writes`` is given only when ops are recomputed; otherwise it follows from the consumers.

    The kernel must be legal (each op offers ``scheme``); legality is the checker's business, not this function's.
    """
    index = topology(instance)
    inside = set(ops)
    offers = {op: index.offers[op][scheme] for op in inside}
    device = instance.devices[instance.ops[next(iter(inside))].device]
    written = set(default_writes(instance, inside, scheme) if writes is None else writes)

    looped = instance.schemes[scheme].r > device.persistent_elements
    passes = _passes(instance, inside, offers) if looped else dict.fromkeys(inside, 1)

    first: dict[tuple[int, int], tuple[int, Read]] = {}
    again: dict[tuple[int, int], int] = {}
    for op, offer in offers.items():
        produced = {instance.edges[e].buffer for e in index.ins[op] if instance.edges[e].src in inside}
        for read in offer.reads:
            if read.buffer in produced:
                continue
            key = (read.buffer, read.footprint)
            amount = _scaled(read.bytes, read.access, device)
            if key not in first or amount > first[key][0]:
                first[key] = (amount, read)
            again[key] = max(again.get(key, 1), passes[op])

    memory = 0
    read_bytes = 0
    for key, (amount, read) in first.items():
        rate = _read_rate(instance, read.buffer, device)
        memory += amount * rate + amount * (again[key] - 1) * device.l2_ps_per_mib
        read_bytes += read.bytes
    write_bytes = 0
    for op, offer in offers.items():
        for write in offer.writes:
            if write.buffer in written:
                memory += _scaled(write.bytes, write.access, device) * device.dram_ps_per_mib
                write_bytes += write.bytes

    if any(offer.reduces for offer in offers.values()):
        programs = max(1, instance.schemes[scheme].parallel)
        memory = memory * max(device.saturating_programs, programs) // programs
    return Price(device.launch_ps, memory // MIB, _compute(instance, inside, device), read_bytes, write_bytes)


def kernel_cost(instance: Instance, ops: Collection[int], scheme: int, writes: Iterable[int] | None = None) -> int:
    """Picoseconds that a legal kernel takes under the model."""
    return kernel_price(instance, ops, scheme, writes).total


def _scaled(size: int, access: AccessClass, device: Device) -> int:
    if access == "strided":
        return size * device.strided_percent // 100
    if access == "gather":
        return size * device.gather_percent // 100
    return size


def _read_rate(instance: Instance, buffer: int, device: Device) -> int:
    """A temporary of at most an eighth of L2 is likely still there when its reader runs."""
    target = instance.buffers[buffer]
    if target.kind == "temporary" and target.bytes * 8 <= device.l2_bytes:
        return device.l2_ps_per_mib
    return device.dram_ps_per_mib


def _compute(instance: Instance, ops: Iterable[int], device: Device) -> int:
    total = Work()
    for op in ops:
        work = instance.ops[op].work
        total = Work(
            total.fp32 + work.fp32, total.special + work.special, total.tensor + work.tensor, total.atomic + work.atomic
        )
    return (
        total.fp32 * device.fp32_ps_per_gop
        + total.special * device.special_ps_per_gop
        + total.tensor * device.tensor_ps_per_gop
        + total.atomic * device.atomic_ps_per_gop
    ) // GOP


def _passes(instance: Instance, inside: set[int], offers: Mapping[int, Offer]) -> dict[int, int]:
    """In how many passes of a looped kernel each op's inputs are read.

    An op's level is the number of reductions before it. A full value is needed in its own pass and again in each later
    pass where something computed from it, without a reduction in between, is used.
    """
    index = topology(instance)
    level: dict[int, int] = {}
    for op in sorted(inside):
        before = [instance.edges[e].src for e in index.ins[op] if instance.edges[e].src in inside]
        level[op] = max((level[b] + offers[b].reduces for b in before), default=0)
    need: dict[int, set[int]] = {}
    for op in sorted(inside, reverse=True):
        need[op] = {level[op]}
        if offers[op].full and not offers[op].reduces:
            for e in index.outs[op]:
                after = instance.edges[e].dst
                if after in inside and instance.edges[e].buffer is not None:
                    need[op] |= need[after]
    return {op: len(levels) for op, levels in need.items()}
