"""The set of atoms whose prices exceed its memory time by most, as a minimum cut."""

from __future__ import annotations

from collections.abc import Sequence

from ortools.graph.python import max_flow

from optfuse.problem.legality import bits, mask_of
from optfuse.solve.cpsat.atoms import Atoms
from optfuse.solve.cpsat.relaxation import UNIT
from optfuse.solve.cpsat.sums import SumTable


def minimum_cut(
    atoms: Atoms, table: SumTable | None, prices: Sequence[int], forced: int, members: int
) -> tuple[int, int]:
    """The largest difference between prices and memory time, and a set that has it.

    The set holds the atoms of ``forced``, only ``members``, and what lies between a forced atom and any other.
    Everything is in 1/``UNIT`` picoseconds.
    """
    if table is None:
        gaining = mask_of(atom for atom in bits(members) if prices[atom] > 0) | forced
        return sum(prices[atom] for atom in bits(gaining)), gaining
    gains = {atom: prices[atom] - table.fixed[atom] * UNIT for atom in bits(members)}
    hope = sum(gain for atom, gain in gains.items() if gain > 0 or forced >> atom & 1)
    endless = 2 * sum(abs(gain) for gain in gains.values()) + 1
    flow = max_flow.SimpleMaxFlow()
    nodes = {atom: number + 2 for number, atom in enumerate(gains)}
    extra = len(nodes) + 2
    for atom, gain in gains.items():
        node = nodes[atom]
        if forced >> atom & 1:
            flow.add_arc_with_capacity(0, node, endless)
        elif gain > 0:
            flow.add_arc_with_capacity(0, node, gain)
        else:
            flow.add_arc_with_capacity(node, 1, -gain)
        for needed in bits(_between(atoms, forced, atom) & members):
            flow.add_arc_with_capacity(node, nodes[needed], endless)
        for price, users in table.writes[atom]:
            flow.add_arc_with_capacity(node, extra, min(endless, price * UNIT))
            for target in {nodes.get(user, 1) for user in bits(users)}:
                flow.add_arc_with_capacity(extra, target, endless)
            extra += 1
    for price, readers, maker in table.keys:
        if readers & members:
            flow.add_arc_with_capacity(extra, nodes.get(maker.bit_length() - 1, 1), min(endless, price * UNIT))
            for reader in bits(readers & members):
                flow.add_arc_with_capacity(nodes[reader], extra, endless)
            extra += 1
    if flow.solve(0, 1) != flow.OPTIMAL:
        return hope, members
    side = set(flow.get_source_side_min_cut())
    return hope - flow.optimal_flow(), mask_of(atom for atom, node in nodes.items() if node in side)


def _between(atoms: Atoms, forced: int, atom: int) -> int:
    """The atoms on paths between forced ones and another."""
    above = below = 0
    for fixed in bits(forced):
        if atoms.before[atom] >> fixed & 1:
            above |= atoms.after[fixed] & atoms.before[atom]
        elif atoms.after[atom] >> fixed & 1:
            below |= atoms.before[fixed] & atoms.after[atom]
    return above | below
