"""Prices that add up: where memory time is a plain sum, a kernel's price follows from that of the kernel it grew from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from optfuse.problem.legality import bits
from optfuse.solve.cpsat.atoms import Atoms
from optfuse.solve.cpsat.pricing import Key, Pricer

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class SumTable:
    """Memory time of a scheme's kernels as a sum, by atom. Bits are atoms; picoseconds throughout.

    A key costs ``keys[key][0]`` when one of its readers ``keys[key][1]`` is inside and its maker ``keys[key][2]`` is not;
    ``later[key]`` is the price of another pass over it. A write costs when one of its users is outside. ``reads[a]`` and
    ``makes[a]`` are keys; ``fixed[a]`` is paid always; ``writes[a]`` are pairs (price, users); ``feeds[a]`` are triples
    (maker, price, users) of the writes that atom a uses. ``reduces`` are the atoms that bring a reduction, ``full`` those
    that run at every point and do not, ``users[a]`` those that take a value from a. All run on ``device``.
    """

    keys: tuple[tuple[int, int, int], ...]
    later: tuple[int, ...]
    reads: Mapping[int, tuple[int, ...]]
    makes: Mapping[int, tuple[int, ...]]
    fixed: Mapping[int, int]
    writes: Mapping[int, tuple[tuple[int, int], ...]]
    feeds: Mapping[int, tuple[tuple[int, int, int], ...]]
    compute: Mapping[int, int]
    users: Mapping[int, int]
    full: int
    reduces: int
    device: int
    after: tuple[int, ...]
    plain: bool

    def grown(self, memory: int, mask: int, atom: int) -> int:
        """The memory time after ``atom`` joins the atoms of ``mask``, whose memory time is ``memory``."""
        inside = mask | 1 << atom
        memory += self.fixed[atom]
        for key in self.reads[atom]:
            price, readers, maker = self.keys[key]
            if not (readers | maker) & mask:
                memory += price
        for key in self.makes[atom]:
            price, readers, _ = self.keys[key]
            if readers & mask:
                memory -= price
        for price, users in self.writes[atom]:
            if users & ~inside:
                memory += price
        for maker, price, users in self.feeds[atom]:
            if maker & mask and not users & ~inside:
                memory -= price
        return memory

    def repeated(self, mask: int) -> int | None:
        """What a looped kernel pays for reading again after its reductions; None where this table cannot tell.

        Something is read again when it is used before a reduction and, with no reduction in between, after one.
        """
        behind = 0
        for atom in bits(mask & self.reduces):
            behind |= self.after[atom]
        behind &= mask
        if not self.plain or behind & self.reduces:
            return None
        again = 0
        front = mask & self.full & ~behind
        while front:
            atom = front.bit_length() - 1
            front ^= 1 << atom
            if self.users[atom] & (behind | again):
                again |= 1 << atom
        keys = {key for atom in bits(again) for key in self.reads[atom] if not self.keys[key][2] & mask}
        return sum(self.later[key] for key in keys)


def sum_table(pricing: Pricer, atoms: Atoms, scheme: int, allowed: int) -> SumTable | None:
    """The table of a scheme over the ``allowed`` atoms; None where prices do not add up.

    They do not when ops differ in device, in what one key costs them or in who makes it, when a buffer has several
    writers, or when alternatives of a variant excuse each other's writes.
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
    fixed, compute, users = dict.fromkeys(members, 0), dict.fromkeys(members, 0), dict.fromkeys(members, 0)
    full = reduces = 0
    for op in inside:
        atom = atoms.of[op]
        term = pricing.terms[op][scheme]
        compute[atom] += pricing.compute[op]
        fixed[atom] += sum(price for _, price, always in term.writes if always)
        users[atom] |= atoms.mask([user for _, takers in term.users for user in bits(takers)])
        reduces |= term.reduces << atom
        full |= (term.full and not term.reduces) << atom
    return SumTable(
        keys=tuple((key.price, key.readers, key.maker) for key in keys),
        later=tuple(key.later for key in keys),
        reads=_listed(members, ((atom, k) for k, key in enumerate(keys) for atom in bits(key.readers))),
        makes=_listed(members, ((atom, k) for k, key in enumerate(keys) for atom in bits(key.maker & allowed))),
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
        users=users,
        full=full,
        reduces=reduces,
        device=problem.ops[inside[0]].device,
        after=atoms.after,
        plain=len(inside) == len(members),
    )


@dataclass(frozen=True, slots=True)
class _Key:
    price: int
    later: int
    readers: int
    maker: int


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
        for key, price, later, makers in pricing.terms[op][scheme].reads:
            if facts.setdefault(key, (price, later, makers)) != (price, later, makers) or makers & makers - 1:
                return None
            readers[key] = readers.get(key, 0) | 1 << atoms.of[op]
    found: list[_Key] = []
    for key, (price, later, makers) in facts.items():
        maker = atoms.mask(list(bits(makers)))
        if readers[key] & ~maker:
            found.append(_Key(price, later, readers[key] & ~maker, maker))
    return found


def _writes(pricing: Pricer, atoms: Atoms, scheme: int, inside: Iterable[int]) -> list[_Write] | None:
    """The writes that are paid only when somebody outside needs them; None when a buffer has several writers."""
    found: list[_Write] = []
    written: set[int] = set()
    for op in inside:
        term = pricing.terms[op][scheme]
        takers = dict(term.users)
        for buffer, price, always in term.writes:
            if always:
                continue
            if buffer in written:
                return None
            written.add(buffer)
            users = atoms.mask(list(bits(takers.get(buffer, 0)))) & ~(1 << atoms.of[op])
            if users:
                found.append(_Write(atoms.of[op], price, users))
    return found


def _listed(members: Iterable[int], pairs: Iterable[tuple[int, T]]) -> dict[int, tuple[T, ...]]:
    """Values by member, in the order of the pairs."""
    lists: dict[int, list[T]] = {member: [] for member in members}
    for member, value in pairs:
        lists[member].append(value)
    return {member: tuple(values) for member, values in lists.items()}
