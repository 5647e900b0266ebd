"""Atoms: ops of a block that no candidate kernel separates, in topological order.

The rule ``fuse`` and presolve tie ops together; so does convexity, where two ties depend on each other in both
directions. All else in this package speaks of atoms: bit ``i`` of a set is atom ``i``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optfuse.problem.cost import topology
from optfuse.problem.instance import Instance
from optfuse.problem.legality import legal_index
from optfuse.problem.op_masks import bits, mask_of
from optfuse.solver.memory.order_problem import list_schedule
from optfuse.solver.reduce.union_find import Components


@dataclass(frozen=True, slots=True)
class Atoms:
    """``ops[i]`` are the ops of atom ``i``, ``of[op]`` is the atom of an op.

    ``before[i]`` and ``after[i]`` are the atoms on a path to and from atom ``i``, along ops that are certain to run.
    ``sources[i]`` are the atoms with an edge to atom ``i``. ``sealed`` atoms are kernels of their own
    (``single_kernel``, ``barrier``).
    """

    ops: tuple[tuple[int, ...], ...]
    of: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    sources: tuple[int, ...]
    sealed: int

    def ops_of(self, mask: int) -> tuple[int, ...]:
        """The ops of a set of atoms, ascending."""
        return tuple(sorted(op for atom in bits(mask) for op in self.ops[atom]))

    def mask(self, ops: Sequence[int]) -> int:
        """The set of atoms that some ops touch."""
        return mask_of(self.of[op] for op in ops)


def find_atoms(problem: Instance) -> Atoms:
    """The atoms of a block under its rules."""
    components = Components(len(problem.ops))
    for pair in problem.rules.fuse:
        components.join(pair)
    for group in problem.rules.single_kernel:
        components.join(group)
    groups = components.groups()
    while True:
        of = [0] * len(problem.ops)
        for number, group in enumerate(groups):
            for op in group:
                of[op] = number
        order, rest = _topological(problem, groups, of)
        if not rest:
            break
        _join_cycles(components, rest)
        groups = components.groups()
    rank = {group: number for number, group in enumerate(order)}
    ops = tuple(groups[group] for group in order)
    return _closed(problem, ops, tuple(rank[group] for group in of))


def _successors(problem: Instance, group: Sequence[int], of: Sequence[int]) -> set[int]:
    """The direct successors of a group, along edges between ops that are certain to run."""
    index = legal_index(problem)
    users = topology(problem).users
    return {
        of[user]
        for op in group
        if index.mandatory >> op & 1
        for user, _ in users[op]
        if index.mandatory >> user & 1 and of[user] != of[op]
    }


def _topological(
    problem: Instance, groups: Sequence[tuple[int, ...]], of: Sequence[int]
) -> tuple[list[int], dict[int, set[int]]]:
    """Groups in a topological order, ties by first op; and the successors of those left out because of a cycle."""
    successors = [_successors(problem, group, of) for group in groups]
    order = list_schedule(successors, [group[0] for group in groups])
    placed = set(order)
    return order, {number: after for number, after in enumerate(successors) if number not in placed}


def _join_cycles(components: Components, rest: dict[int, set[int]]) -> None:
    """Join groups on a common cycle: a kernel with one of them must hold them all."""
    groups = components.groups()
    reached = {number: mask_of(after) for number, after in rest.items()}
    for middle in rest:
        for number in rest:
            if reached[number] >> middle & 1:
                reached[number] |= reached[middle]
    for number in rest:
        cycle = [other for other in bits(reached[number]) if reached[other] >> number & 1]
        components.join([groups[number][0], *(groups[other][0] for other in cycle)])


def _closed(problem: Instance, ops: tuple[tuple[int, ...], ...], of: tuple[int, ...]) -> Atoms:
    """Close the edges between atoms transitively."""
    index = legal_index(problem)
    topo = topology(problem)
    before, after, sources = [0] * len(ops), [0] * len(ops), [0] * len(ops)
    direct: list[set[int]] = [set() for _ in ops]
    for atom, group in enumerate(ops):
        own = 1 << atom
        for op in group:
            for source, _ in topo.sources[op]:
                sources[atom] |= (1 << of[source]) & ~own
                if index.mandatory >> source & index.mandatory >> op & 1 and of[source] != atom:
                    before[atom] |= before[of[source]] | 1 << of[source]
                    direct[atom].add(of[source])
    for atom in reversed(range(len(ops))):
        for earlier in direct[atom]:
            after[earlier] |= after[atom] | 1 << atom
    sealed = mask_of(of[op] for op in (*problem.rules.barrier, *(op for g in problem.rules.single_kernel for op in g)))
    return Atoms(ops, of, tuple(before), tuple(after), tuple(sources), sealed)
