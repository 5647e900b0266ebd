"""Which atoms can share a kernel of one scheme: the links that connect them and the pairs that are forbidden."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from optfuse.problem.instance import Instance
from optfuse.problem.legality import is_connected, is_legal, legal_index
from optfuse.problem.op_masks import bits, mask_of
from optfuse.solver.columns.atoms import Atoms


@dataclass(frozen=True, slots=True, eq=False)
class Compatibility:
    """The atoms ``allowed`` in kernels of a scheme, the ``links`` between them, and pairs that may not share one."""

    scheme: int
    allowed: int
    links: Mapping[int, int]
    clashes: Mapping[int, int]


def compatible_atoms(problem: Instance, atoms: Atoms, scheme: int) -> Compatibility:
    """The atoms that may run in kernels of a scheme, with their links and forbidden pairs."""
    index = legal_index(problem)
    allowed = 0
    clashes: dict[int, int] = {}
    for atom, ops in enumerate(atoms.ops):
        if atoms.sealed >> atom & 1 or any(scheme not in index.footprints[op] for op in ops):
            continue
        allowed |= 1 << atom
        clashes[atom] = atoms.mask([other for op in ops for other in bits(index.apart[op])])
    links = dict.fromkeys(bits(allowed), 0 if problem.limits.connected else allowed)
    for op, successors in enumerate(index.successors):
        for after, schemes in successors:
            first, second = atoms.of[op], atoms.of[after]
            if not allowed >> first & allowed >> second & 1:
                continue
            table = links if scheme in schemes else clashes
            table[first] |= 1 << second
            table[second] |= 1 << first
    together: dict[tuple[int, int], int] = {}
    for atom in bits(allowed):
        for op in atoms.ops[atom]:
            for key in index.footprints[op][scheme]:
                together[key] = together.get(key, 0) | 1 << atom
    for readers in together.values():
        for atom in bits(readers):
            links[atom] |= readers
    for atom, others in _on_other_devices(problem, atoms, allowed):
        clashes[atom] |= others
    coherent = mask_of(atom for atom in bits(allowed) if not clashes[atom] >> atom & 1)
    return Compatibility(scheme, coherent, links, clashes)


def _on_other_devices(problem: Instance, atoms: Atoms, allowed: int) -> Iterator[tuple[int, int]]:
    """Atoms, each with those that run on another device, itself too if its own ops differ."""
    on_device: dict[int, int] = {}
    for atom in bits(allowed):
        for op in atoms.ops[atom]:
            on_device[problem.ops[op].device] = on_device.get(problem.ops[op].device, 0) | 1 << atom
    for device, here in on_device.items():
        elsewhere = 0
        for other, there in on_device.items():
            elsewhere |= there if other != device else 0
        for atom in bits(here if elsewhere else 0):
            yield atom, elsewhere


def deferred_check(problem: Instance, atoms: Atoms, compatibility: Compatibility) -> Callable[[int], bool] | None:
    """The legality test that enumeration leaves to the end; None where connected convex sets are legal already.

    It is needed where variants make paths uncertain, or where the ops of an atom are not connected among themselves.
    """
    if problem.variants:
        return lambda mask: is_legal(problem, atoms.ops_of(mask), compatibility.scheme)
    index = legal_index(problem)
    if problem.limits.connected and not all(
        len(atoms.ops[atom]) == 1 or is_connected(index, mask_of(atoms.ops[atom]), compatibility.scheme)
        for atom in bits(compatibility.allowed)
    ):
        return lambda mask: is_connected(index, mask_of(atoms.ops_of(mask)), compatibility.scheme)
    return None
