"""The price of a kernel in integer picoseconds, which greedy, solver, checker and report share.

cost = launch + max(memory time, compute time). What kernels save that share a launch is counted by itself.

Memory time counts each distinct footprint read and each buffer written once a kernel. It is higher for strided,
gathered and column access, for inputs that a looped reduction reads again in a later pass, and for a reduction with too
few programs to fill the device; lower for bytes from L2 (small temporaries, later passes).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from optfuse.problem.instance import AccessClass, Buffer, Device, Instance, Offer, Read, Work, Write
from optfuse.problem.instance_cache import per_instance
from optfuse.problem.solution import Kernel

MIB = 1 << 20
GOP = 1 << 30


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a kernel and its terms: picoseconds, and bytes (each footprint once, without later passes)."""

    launch: int
    memory: int
    compute: int
    read_bytes: int
    write_bytes: int

    @property
    def total(self) -> int:
        """Picoseconds, launch included."""
        return self.launch + max(self.memory, self.compute)


@dataclass(frozen=True)
class Topology:
    """Adjacency and prices of an instance, by op.

    ``ins`` and ``outs`` are positions in ``instance.edges``; ``sources`` and ``users`` are the same edges as pairs
    (other op, buffer or None). ``offers[op][scheme]`` is the offer, and ``compute[op]`` the op's arithmetic in
    picoseconds times ``GOP``. ``rivals[op]`` are the ops that cannot run when it does (other alternatives of its
    variant); ops of no variant have no entry. ``rates[op]`` are the prices of accesses on the op's device. ``always``
    are the buffers that always reach memory. ``launch[op]`` is the launch of a kernel with the op alone.
    """

    ins: tuple[tuple[int, ...], ...]
    outs: tuple[tuple[int, ...], ...]
    sources: tuple[tuple[tuple[int, int | None], ...], ...]
    users: tuple[tuple[tuple[int, int | None], ...], ...]
    offers: tuple[Mapping[int, Offer], ...]
    compute: tuple[int, ...]
    rivals: Mapping[int, frozenset[int]]
    rates: tuple[Rates, ...]
    always: frozenset[int]
    launch: tuple[int, ...]

    @cached_property
    def priced(self) -> tuple[Mapping[int, PricedOffer], ...]:
        """``priced[op][scheme]``: the prices of an offer's accesses, computed when a larger kernel is priced."""
        return tuple(
            {scheme: rates.priced(offer, self.always) for scheme, offer in offers.items()}
            for rates, offers in zip(self.rates, self.offers, strict=True)
        )


@dataclass(frozen=True, slots=True)
class PricedOffer:
    """An offer's accesses in picoseconds times ``MIB``.

    ``reads``: (buffer, footprint, price of the first pass, price of each later pass, bytes).
    ``writes``: (buffer, price, bytes, whether it always reaches memory).
    """

    reads: tuple[tuple[int, int, int, int, int], ...]
    writes: tuple[tuple[int, int, int, bool], ...]
    full: bool
    reduces: bool


@per_instance
def topology(instance: Instance) -> Topology:
    """Index the edges, the offers and their prices by op; remembered by identity."""
    ins: list[list[int]] = [[] for _ in instance.ops]
    outs: list[list[int]] = [[] for _ in instance.ops]
    for position, edge in enumerate(instance.edges):
        ins[edge.dst].append(position)
        outs[edge.src].append(position)
    edges = instance.edges
    rates = [Rates(instance, device) for device in instance.devices]
    return Topology(
        ins=tuple(map(tuple, ins)),
        outs=tuple(map(tuple, outs)),
        sources=tuple([tuple([(edges[e].src, edges[e].buffer) for e in mine]) for mine in ins]),
        users=tuple([tuple([(edges[e].dst, edges[e].buffer) for e in mine]) for mine in outs]),
        offers=tuple([{offer.scheme: offer for offer in op.offers} for op in instance.ops]),
        compute=tuple([_arithmetic(op.work, instance.devices[op.device]) for op in instance.ops]),
        rivals=_rivals(instance),
        rates=tuple([rates[op.device] for op in instance.ops]),
        launch=tuple([instance.devices[op.device].launch_ps + op.launch_ps for op in instance.ops]),
        always=frozenset(n for n, buffer in enumerate(instance.buffers) if buffer.output or buffer.kind != "temporary"),
    )


def _arithmetic(work: Work, device: Device) -> int:
    """Picoseconds times ``GOP``."""
    amount = (
        work.fp32 * device.fp32_ps_per_gop
        + work.special * device.special_ps_per_gop
        + work.tensor * device.tensor_ps_per_gop
        + work.atomic * device.atomic_ps_per_gop
    )
    return _whole(amount, GOP)


def _rivals(instance: Instance) -> dict[int, frozenset[int]]:
    rivals: dict[int, frozenset[int]] = {}
    for variant in instance.variants:
        members = {op for alternative in variant.alternatives for op in alternative}
        for op in members:
            beside = {other for alternative in variant.alternatives if op in alternative for other in alternative}
            rivals[op] = frozenset(members - beside)
    return rivals


def default_writes(
    instance: Instance, ops: Collection[int], scheme: int, running: Container[int] | None = None
) -> tuple[int, ...]:
    """The buffers that a kernel must write if no op is recomputed: outputs, and values used outside it.

    Only users among the ``running`` ops count; by default all that can run together with the kernel's own, which are
    not in other alternatives of their variants.
    """
    index = topology(instance)
    if len(ops) > 1 or index.rivals:
        return tuple(sorted(_needed(index, ops, scheme, running)))
    op = next(iter(ops))
    used = [buffer for _, buffer in index.users[op]]
    needed = [w.buffer for w in index.offers[op][scheme].writes if w.buffer in used or w.buffer in index.always]
    return tuple(sorted(needed)) if len(needed) > 1 else tuple(needed)


def kernel_price(instance: Instance, ops: Collection[int], scheme: int, writes: Iterable[int] | None = None) -> Price:
    """The price of a kernel. ``writes`` is given only when ops are recomputed; otherwise it follows from the consumers.

    The kernel must be legal (each op offers ``scheme``): the checker tests that, this function does not.
    """
    return Price(*_price(instance, topology(instance), ops, scheme, writes))


def kernel_cost(instance: Instance, ops: Collection[int], scheme: int, writes: Iterable[int] | None = None) -> int:
    """The time of a legal kernel under the model in picoseconds: the total of its price."""
    launch, memory, compute, _, _ = _price(instance, topology(instance), ops, scheme, writes)
    return launch + max(memory, compute)


def total_cost(instance: Instance, kernels: Iterable[Kernel]) -> int:
    """The time of kernels of known writes, one after the other, in picoseconds."""
    index = topology(instance)
    prices = [_price(instance, index, kernel.ops, kernel.scheme, kernel.writes) for kernel in kernels]
    return sum([launch + max(memory, compute) for launch, memory, compute, _, _ in prices])


def shared_saving(instance: Instance, kernels: Sequence[Kernel], launches: Iterable[Sequence[int]]) -> int:
    """What is saved by kernels (by position) that share launches: all but one of each pay ``shared_ps`` for it."""
    saved = 0
    for launch in launches:
        device = instance.devices[instance.ops[kernels[launch[0]].ops[0]].device]
        saved += (len(launch) - 1) * (device.launch_ps - device.shared_ps)
    return saved


def _price(
    instance: Instance, index: Topology, ops: Collection[int], scheme: int, writes: Iterable[int] | None
) -> tuple[int, int, int, int, int]:
    """The fields of a ``Price``."""
    if len(ops) == 1:
        return _price_alone(instance, index, next(iter(ops)), scheme, writes)
    inside = set(ops)
    device = instance.devices[instance.ops[next(iter(inside))].device]
    memory, read_bytes = _reads(index, inside, scheme, instance.schemes[scheme].r > device.persistent_elements)
    written = _needed(index, inside, scheme) if writes is None else set(writes)
    write_bytes = compute = 0
    reduces = False
    for op in inside:
        priced = index.priced[op][scheme]
        compute += index.compute[op]
        reduces = reduces or priced.reduces
        for buffer, price, size, _ in priced.writes:
            if buffer in written:
                memory += price
                write_bytes += size
    if reduces:
        programs = max(1, instance.schemes[scheme].parallel)
        memory = memory * max(device.saturating_programs, programs) // programs
    launch = max([index.launch[op] for op in inside])
    return launch, memory // MIB, compute // GOP, read_bytes, write_bytes


def _price_alone(
    instance: Instance, index: Topology, op: int, scheme: int, writes: Iterable[int] | None
) -> tuple[int, int, int, int, int]:
    """The fields of a ``Price`` for a kernel of one op, computed faster: one pass, and no value read from itself."""
    offer, rates = index.offers[op][scheme], index.rates[op]
    written = _needed(index, (op,), scheme) if writes is None else writes
    memory, read_bytes = rates.reads_alone(offer.reads)
    write_bytes = 0
    for write in offer.writes:
        if write.buffer in written:
            memory += rates.write(write)
            write_bytes += write.bytes
    if offer.reduces:
        programs = max(1, instance.schemes[scheme].parallel)
        memory = memory * max(rates.device.saturating_programs, programs) // programs
    return index.launch[op], memory // MIB, index.compute[op] // GOP, read_bytes, write_bytes


def kernel_accesses(
    instance: Instance, ops: Collection[int], scheme: int, writes: Iterable[int] | None = None
) -> tuple[list[tuple[Read, int]], list[Write], bool]:
    """The accesses that a price counts: reads with their numbers of later passes, writes, and whether it reduces."""
    index, inside = topology(instance), set(ops)
    looped = instance.schemes[scheme].r > instance.devices[instance.ops[next(iter(inside))].device].persistent_elements
    passes = _passes(index, inside, scheme) if looped else {}
    written = _needed(index, inside, scheme) if writes is None else set(writes)
    reads: dict[tuple[int, int], tuple[Read, int]] = {}
    stored: list[Write] = []
    for op in sorted(inside):
        offer = index.offers[op][scheme]
        produced = {buffer for source, buffer in index.sources[op] if source in inside}
        for read in offer.reads:
            if read.buffer not in produced:
                known, again = reads.get((read.buffer, read.footprint), (read, 0))
                larger = read if read.bytes > known.bytes else known
                reads[read.buffer, read.footprint] = larger, max(again, passes.get(op, 1) - 1)
        stored += [write for write in offer.writes if write.buffer in written]
    return list(reads.values()), stored, any(index.offers[op][scheme].reduces for op in inside)


class Rates:
    """The prices of accesses on a device, in picoseconds times ``MIB``; each distinct one is computed once."""

    def __init__(self, instance: Instance, device: Device) -> None:
        self.device = device
        self._reads = [_read_rate(buffer, device) for buffer in instance.buffers]
        self._writes = [_write_rate(buffer, device) for buffer in instance.buffers]
        self._known: dict[tuple[int, int, AccessClass], tuple[int, int]] = {}

    def reads_alone(self, reads: Sequence[Read]) -> tuple[int, int]:
        """The price of one pass over some reads, each footprint once, and their bytes."""
        if len(reads) == 1:
            (read,) = reads
            return self._price(self._reads[read.buffer], read.bytes, read.access)[0], read.bytes
        dearest: dict[tuple[int, int], tuple[int, int, int]] = {}
        for read in reads:
            key, price = (read.buffer, read.footprint), self._price(self._reads[read.buffer], read.bytes, read.access)
            if key not in dearest or dearest[key] < (*price, read.bytes):
                dearest[key] = (*price, read.bytes)
        return sum([price for price, _, _ in dearest.values()]), sum([size for _, _, size in dearest.values()])

    def write(self, write: Write) -> int:
        """The price of a write."""
        return self._price(self._writes[write.buffer], write.bytes, write.access)[0]

    def priced(self, offer: Offer, always: Collection[int]) -> PricedOffer:
        """The prices of an offer's accesses. ``always``: the buffers that always reach memory."""
        reads = []
        for read in offer.reads:
            first, later = self._price(self._reads[read.buffer], read.bytes, read.access)
            reads.append((read.buffer, read.footprint, first, later, read.bytes))
        writes = []
        for write in offer.writes:
            writes.append((write.buffer, self.write(write), write.bytes, write.buffer in always))
        return PricedOffer(tuple(reads), tuple(writes), offer.full, offer.reduces)

    def _price(self, rate: int, size: int, access: AccessClass) -> tuple[int, int]:
        """The prices of the first pass over an access, and of each later one through L2."""
        known = self._known.get((rate, size, access))
        if known is None:
            amount = _scaled(size, access, self.device)
            first = _whole(_with_ramp(amount * rate, self.device), MIB)
            known = self._known[rate, size, access] = first, _whole(amount * self.device.l2_ps_per_mib, MIB)
        return known


def _whole(amount: int, unit: int) -> int:
    """An amount rounded down to whole picoseconds, so that prices of accesses and ops add up exactly."""
    return amount // unit * unit


def _needed(index: Topology, ops: Collection[int], scheme: int, running: Container[int] | None = None) -> set[int]:
    """The buffers of a kernel that must reach memory: outputs, mutations, and values used outside the kernel."""
    served = set(ops)
    if index.rivals:
        served = served.union(*(index.rivals[op] for op in ops if op in index.rivals))
    needed: set[int] = set()
    for op in ops:
        users = index.users[op]
        outside = {b for user, b in users if user not in served and (running is None or user in running)}
        for write in index.offers[op][scheme].writes:
            if write.buffer in outside or write.buffer in index.always:
                needed.add(write.buffer)
    return needed


def _reads(index: Topology, inside: set[int], scheme: int, looped: bool) -> tuple[int, int]:
    """The price of a kernel's reads, each footprint once and once for each later pass, and their bytes."""
    passes = _passes(index, inside, scheme) if looped else {}
    first: dict[tuple[int, int], tuple[int, int, int]] = {}
    again: dict[tuple[int, int], int] = {}
    for op in inside:
        reads = index.priced[op][scheme].reads
        if not reads:
            continue
        produced = {buffer for source, buffer in index.sources[op] if source in inside}
        extra = passes.get(op, 1) - 1
        for buffer, footprint, price, later, size in reads:
            if buffer in produced:
                continue
            key = (buffer, footprint)
            known = first.get(key)
            if known is None or known < (price, later, size):
                first[key] = (price, later, size)
            if extra:
                again[key] = max(again.get(key, 0), extra)
    total = size = 0
    for price, _, amount in first.values():
        total += price
        size += amount
    for key, extra in again.items():
        total += first[key][1] * extra
    return total, size


def access_percent(access: AccessClass, device: Device) -> int:
    """The price of an access's bytes in percent of contiguous ones."""
    match access:
        case "strided":
            return device.strided_percent
        case "gather":
            return device.gather_percent
        case "column":
            return device.column_percent
        case "contiguous" | "broadcast":
            return 100


def _scaled(size: int, access: AccessClass, device: Device) -> int:
    return size * access_percent(access, device) // 100


def _stays_in_l2(buffer: Buffer, device: Device) -> bool:
    """Whether a temporary is likely still in L2 when its reader runs: it has at most an eighth of its size."""
    return buffer.kind == "temporary" and buffer.bytes * 8 <= device.l2_bytes


def _read_rate(buffer: Buffer, device: Device) -> int:
    return device.l2_ps_per_mib if _stays_in_l2(buffer, device) else device.dram_ps_per_mib


def _write_rate(buffer: Buffer, device: Device) -> int:
    """The rate of a write: that of L2, if the device has one, for buffers that stay there."""
    if device.l2_write_ps_per_mib and _stays_in_l2(buffer, device):
        return device.l2_write_ps_per_mib
    return device.dram_ps_per_mib


def _with_ramp(price: int, device: Device) -> int:
    """The price of a first pass in picoseconds times ``MIB``, with the time until memory is at its rate."""
    return price + min(price, device.ramp_ps * MIB)


def _passes(index: Topology, inside: set[int], scheme: int) -> dict[int, int]:
    """By op: the number of passes of a looped kernel that read its inputs.

    An op's level is the number of reductions before it. A full value is needed in its own pass and again in each later
    pass where something computed from it, without a reduction in between, is used.
    """
    level: dict[int, int] = {}
    for op in sorted(inside):
        before = [source for source, _ in index.sources[op] if source in inside]
        level[op] = max((level[b] + index.priced[b][scheme].reduces for b in before), default=0)
    need: dict[int, set[int]] = {}
    for op in sorted(inside, reverse=True):
        need[op] = {level[op]}
        priced = index.priced[op][scheme]
        if priced.full and not priced.reduces:
            for user, buffer in index.users[op]:
                if user in inside and buffer is not None:
                    need[op] |= need[user]
    return {op: len(levels) for op, levels in need.items()}
