"""The cost of a kernel, updated in constant time per access as the enumeration adds an atom to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from optfuse.problem.legality import legal_index
from optfuse.problem.op_masks import bits, mask_of
from optfuse.solver.columns.atoms import Atoms
from optfuse.solver.columns.pricing import Key, Pricer

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class IncrementalCost:
    """The memory time of a scheme's kernels as a sum over reads and writes. Bits are atoms; times are picoseconds.

    A key costs its price when one of its readers is inside and its producer is not; ``producers[key]`` is the latter,
    and ``later[key]`` the price of another pass over it. A write costs when one of its users is outside.
    ``reads[a]`` are pairs (price, readers and producer) of the keys that atom a reads, ``makes[a]`` pairs (price,
    readers) of those that it produces; ``fixed[a]`` is always paid; ``writes[a]`` are pairs (price, users);
    ``feeds[a]`` are triples (producer, price, users) of the writes that atom a uses. ``reduces`` are the atoms with a
    reduction. All atoms run on ``device``. ``loop`` gives the reads that a looped kernel repeats.
    """

    producers: tuple[int, ...]
    later: tuple[int, ...]
    reads: Mapping[int, tuple[tuple[int, int], ...]]
    makes: Mapping[int, tuple[tuple[int, int], ...]]
    fixed: Mapping[int, int]
    writes: Mapping[int, tuple[tuple[int, int], ...]]
    feeds: Mapping[int, tuple[tuple[int, int, int], ...]]
    compute: Mapping[int, int]
    reduces: int
    device: int
    loop: Loop

    def grown(self, memory: int, mask: int, atom: int) -> int:
        """The memory time after ``atom`` joins the atoms of ``mask``, whose memory time is ``memory``."""
        inside = mask | 1 << atom
        memory += self.fixed[atom]
        for price, known in self.reads[atom]:
            if not known & mask:
                memory += price
        for price, readers in self.makes[atom]:
            if readers & mask:
                memory -= price
        for price, users in self.writes[atom]:
            if users & inside != users:
                memory += price
        for producer, price, users in self.feeds[atom]:
            if producer & mask and users & inside == users:
                memory -= price
        return memory

    def repeated(self, mask: int) -> int | None:
        """The price of a looped kernel's later passes; None where the kernel must be priced as a whole."""
        return self.loop.later_passes(mask, self)


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """The ops of a scheme as bitmasks, to find the passes of a looped kernel.

    ``ops[a]`` are the ops of atom a, ``behind[a]`` the descendants of those that reduce, ``users[op]`` an op's
    consumers, ``reads[op]`` its keys. ``full`` ops run at every point and do not reduce; ``reduces`` do.
    """

    ops: Mapping[int, int]
    behind: Mapping[int, int]
    users: Mapping[int, int]
    reads: Mapping[int, tuple[int, ...]]
    full: int
    reduces: int

    def later_passes(self, mask: int, table: IncrementalCost) -> int | None:
        """The price of the keys used before a reduction and, with no reduction in between, after one.

        None where one reduction of the kernel follows another: then there may be more than two passes.
        """
        inside = behind = 0
        for atom in bits(mask):
            inside |= self.ops[atom]
            behind |= self.behind[atom]
        behind &= inside
        if behind & self.reduces:
            return None
        again = 0
        front = inside & self.full & ~behind
        while front:
            op = front.bit_length() - 1
            front ^= 1 << op
            if self.users[op] & (behind | again):
                again |= 1 << op
        keys = {key for op in bits(again) for key in self.reads[op] if not table.producers[key] & mask}
        return sum(table.later[key] for key in keys)


def incremental_cost(pricing: Pricer, atoms: Atoms, scheme: int, allowed: int) -> IncrementalCost | None:
    """The table of a scheme over the ``allowed`` atoms; None where memory time is no sum over them.

    That is so when ops differ in device, in the price or the producer of a key, when a buffer has several writers, or
    when only one of several alternatives' writes is paid.
    """
    inside = [op for atom in bits(allowed) for op in atoms.ops[atom]]
    problem = pricing.problem
    if any(pricing.rivals[op] for op in inside) or len({problem.ops[op].device for op in inside}) > 1:
        return None
    keys = _keys(pricing, atoms, scheme, inside)
    writes = _writes(pricing, atoms, scheme, inside)
    if keys is None or writes is None:
        return None
    members = list(bits(allowed))
    fixed, compute = dict.fromkeys(members, 0), dict.fromkeys(members, 0)
    for op in inside:
        compute[atoms.of[op]] += pricing.compute[op]
        fixed[atoms.of[op]] += sum(price for _, price, always in pricing.terms[op][scheme].writes if always)
    loop = _loop(pricing, atoms, scheme, allowed, {key.key: k for k, key in enumerate(keys)})
    return IncrementalCost(
        producers=tuple(key.producer for key in keys),
        later=tuple(key.later for key in keys),
        reads=_listed(
            members, ((atom, (key.price, key.readers | key.producer)) for key in keys for atom in bits(key.readers))
        ),
        makes=_listed(
            members, ((atom, (key.price, key.readers)) for key in keys for atom in bits(key.producer & allowed))
        ),
        fixed=fixed,
        writes=_listed(members, ((write.atom, (write.price, write.users)) for write in writes)),
        feeds=_listed(
            members,
            (
                (user, (1 << write.atom, write.price, write.users))
                for write in writes
                for user in bits(write.users & allowed)
            ),
        ),
        compute=compute,
        reduces=atoms.mask(list(bits(loop.reduces))),
        device=problem.ops[inside[0]].device,
        loop=loop,
    )


def _loop(pricing: Pricer, atoms: Atoms, scheme: int, allowed: int, numbers: Mapping[Key, int]) -> Loop:
    reach = legal_index(pricing.problem).reach()
    ops = {atom: mask_of(atoms.ops[atom]) for atom in bits(allowed)}
    terms = {op: pricing.terms[op][scheme] for mask in ops.values() for op in bits(mask)}
    users = dict.fromkeys(terms, 0)
    for op, term in terms.items():
        for _, consumers in term.users:
            users[op] |= consumers
    behind = dict.fromkeys(ops, 0)
    for atom, mask in ops.items():
        for op in bits(mask):
            behind[atom] |= reach.descendants[op] if terms[op].reduces else 0
    return Loop(
        ops=ops,
        behind=behind,
        users=users,
        reads={op: tuple(numbers[key] for key, *_ in term.reads if key in numbers) for op, term in terms.items()},
        full=mask_of(op for op, term in terms.items() if term.full and not term.reduces),
        reduces=mask_of(op for op, term in terms.items() if term.reduces),
    )


@dataclass(frozen=True, slots=True)
class _Key:
    key: Key
    price: int
    later: int
    readers: int
    producer: int


@dataclass(frozen=True, slots=True)
class _Write:
    atom: int
    price: int
    users: int


def _keys(pricing: Pricer, atoms: Atoms, scheme: int, inside: Iterable[int]) -> list[_Key] | None:
    """The keys that some atom may have to read from memory; None when their readers disagree."""
    facts: dict[Key, tuple[int, int, int]] = {}
    readers: dict[Key, int] = {}
    for op in inside:
        for key, price, later, producers in pricing.terms[op][scheme].reads:
            if (
                facts.setdefault(key, (price, later, producers)) != (price, later, producers)
                or producers & producers - 1
            ):
                return None
            readers[key] = readers.get(key, 0) | 1 << atoms.of[op]
    found: list[_Key] = []
    for key, (price, later, producers) in facts.items():
        producer = atoms.mask(list(bits(producers)))
        if readers[key] & ~producer:
            found.append(_Key(key, price, later, readers[key] & ~producer, producer))
    return found


def _writes(pricing: Pricer, atoms: Atoms, scheme: int, inside: Iterable[int]) -> list[_Write] | None:
    """The writes that are paid only when an op outside the kernel reads them; None if a buffer has several writers."""
    found: list[_Write] = []
    written: set[int] = set()
    for op in inside:
        term = pricing.terms[op][scheme]
        consumers = dict(term.users)
        for buffer, price, always in term.writes:
            if always:
                continue
            if buffer in written:
                return None
            written.add(buffer)
            users = atoms.mask(list(bits(consumers.get(buffer, 0)))) & ~(1 << atoms.of[op])
            if users:
                found.append(_Write(atoms.of[op], price, users))
    return found


def _listed(members: Iterable[int], pairs: Iterable[tuple[int, T]]) -> dict[int, tuple[T, ...]]:
    """Values by member, in the order of the pairs."""
    lists: dict[int, list[T]] = {member: [] for member in members}
    for member, value in pairs:
        lists[member].append(value)
    return {member: tuple(values) for member, values in lists.items()}
