"""The most profitable kernel of each root, by minimum cut: what prices out candidates that nobody has listed.

Give every atom a price. A kernel that costs less than the prices of its atoms makes a *profit*; its *root* is its first
atom. For one root and one scheme, the set of largest profit is a minimum cut, over the atoms after the root that could
meet it: whoever is inside brings in what lies on paths from the root, pays for reads that nobody inside makes and for
writes that somebody outside needs. The cut sees memory time alone, and neither size limits nor clashes or paths between
two atoms other than the root: so the profit found is an upper bound, and the set found is a candidate if it is legal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ortools.graph.python import max_flow

from optfuse.problem.instance import Instance
from optfuse.problem.legality import bits, mask_of
from optfuse.solve.cpsat.atoms import Atoms
from optfuse.solve.cpsat.meeting import Meeting, meet
from optfuse.solve.cpsat.pricing import pricer
from optfuse.solve.cpsat.relaxation import UNIT
from optfuse.solve.cpsat.sums import SumTable, sum_table


@dataclass(frozen=True, slots=True)
class Profit:
    """At most what a kernel of some root and scheme can gain, in 1/``UNIT`` picoseconds, and the set that gains it."""

    amount: int
    atoms: int
    scheme: int


class Roots:
    """Finds profits in one block."""

    def __init__(self, problem: Instance, atoms: Atoms) -> None:
        """Look up what every cut needs."""
        self.atoms = atoms
        self._launch = min((device.launch_ps for device in problem.devices), default=0) * UNIT
        self._tables: list[tuple[Meeting, SumTable | None]] = []
        for scheme in range(1, len(problem.schemes)):
            meeting = meet(problem, atoms, scheme)
            if meeting.allowed:
                self._tables.append((meeting, sum_table(pricer(problem), atoms, scheme, meeting.allowed)))
        self._alone: list[tuple[int, int]] = []
        for ops in atoms.ops:
            terms = pricer(problem).terms
            shared = [scheme for scheme in terms[ops[0]] if all(scheme in terms[op] for op in ops)]
            self._alone.append(min((pricer(problem).price(mask_of(ops), scheme), scheme) for scheme in shared))

    def profits(self, prices: Sequence[int], root: int) -> list[Profit]:
        """For each scheme the largest profit of a root, where there is any. Prices are in 1/``UNIT`` picoseconds."""
        cost, scheme = self._alone[root]
        found = [Profit(prices[root] - cost * UNIT, 1 << root, scheme)]
        for meeting, table in self._tables:
            if meeting.allowed >> root & 1:
                amount, inside = _cut(self.atoms, meeting, table, prices, root)
                found.append(Profit(amount - self._launch, inside, meeting.scheme))
        return [profit for profit in found if profit.amount > 0]


def _members(atoms: Atoms, meeting: Meeting, root: int) -> int:
    """Atoms after the root that some kernel of the scheme could hold beside it."""
    later = meeting.allowed & ~((1 << root) - 1) & ~meeting.clashes[root]
    members = 1 << root
    for atom in bits(later & ~(1 << root)):
        if not atoms.after[root] & atoms.before[atom] & ~later:
            members |= 1 << atom
    return members


def _cut(atoms: Atoms, meeting: Meeting, table: SumTable | None, prices: Sequence[int], root: int) -> tuple[int, int]:
    """The most by which the prices of a set with the root can exceed its memory time, and the set."""
    members = _members(atoms, meeting, root)
    if table is None:
        gaining = mask_of(atom for atom in bits(members) if prices[atom] > 0) | 1 << root
        return sum(prices[atom] for atom in bits(gaining)), gaining
    gains = {atom: prices[atom] - table.fixed[atom] * UNIT for atom in bits(members)}
    hope = sum(gain for atom, gain in gains.items() if gain > 0 and atom != root)
    endless = 4 * (hope + sum(abs(gain) for gain in gains.values())) + 4
    flow = max_flow.SimpleMaxFlow()
    nodes = {atom: number + 2 for number, atom in enumerate(gains)}
    extra = len(nodes) + 2
    for atom, gain in gains.items():
        node = nodes[atom]
        if atom == root:
            flow.add_arc_with_capacity(0, node, endless)
        elif gain > 0:
            flow.add_arc_with_capacity(0, node, gain)
        else:
            flow.add_arc_with_capacity(node, 1, -gain)
        for between in bits(atoms.before[atom] & atoms.after[root] & members):
            flow.add_arc_with_capacity(node, nodes[between], endless)
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
        return hope + gains[root], members
    side = set(flow.get_source_side_min_cut())
    inside = mask_of(atom for atom, node in nodes.items() if node in side)
    return hope + gains[root] - flow.optimal_flow(), inside
