"""A lower bound on a block whose candidates are too many to list.

Give every atom a price. A kernel that costs less than its atoms' prices makes a *profit*; name the kernel after its
first atom, its root. No two kernels of a solution have the same root, so

    cost of any solution >= sum of all prices - sum over roots of the largest profit of a kernel of that root.

The largest profit is bounded from above by a minimum cut: over all sets that hold the root, atoms after it that could
meet it, and whatever lies on paths between them; at the memory time alone, without the kernel's other conditions. The
prices come from a relaxation over some of the candidates. Where a profit is found, the prices that make it are lowered
in the next round.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from optfuse.problem.flow import INFINITE, Network
from optfuse.problem.instance import Instance
from optfuse.problem.legality import bits
from optfuse.solve.cpsat.atoms import Atoms
from optfuse.solve.cpsat.meeting import Meeting, meet
from optfuse.solve.cpsat.pricing import pricer
from optfuse.solve.cpsat.relaxation import UNIT
from optfuse.solve.cpsat.sums import SumTable, sum_table

ROUNDS = 4


@dataclass(frozen=True, slots=True)
class _Profit:
    """The most that a kernel of some root can gain, in 1/``UNIT`` picoseconds, and the atoms that gain it."""

    amount: int
    atoms: int


def rooted_bound(problem: Instance, atoms: Atoms, prices: Sequence[int], deadline: float) -> int:
    """A bound on every solution's cost in picoseconds, or 0 when time runs out (``deadline`` is monotonic).

    ``prices`` are by atom, in 1/``UNIT`` picoseconds; atoms of variants must have price 0.
    """
    launch = min((device.launch_ps for device in problem.devices), default=0) * UNIT
    tables = [
        (meeting, sum_table(pricer(problem), atoms, meeting.scheme, meeting.allowed))
        for meeting in (meet(problem, atoms, scheme) for scheme in range(1, len(problem.schemes)))
        if meeting.allowed
    ]
    prices = list(prices)
    best = 0
    for _ in range(ROUNDS):
        profits: list[_Profit] = []
        for root in range(len(atoms.ops)):
            if time.monotonic() > deadline:
                return best
            profits.append(_largest(problem, atoms, tables, prices, root, launch))
        best = max(best, (sum(prices) - sum(profit.amount for profit in profits)) // UNIT)
        if not any(profit.amount for profit in profits):
            break
        for profit in profits:
            for atom in bits(profit.atoms):
                prices[atom] -= profit.amount // profit.atoms.bit_count()
    return best


def _largest(
    problem: Instance,
    atoms: Atoms,
    tables: Sequence[tuple[Meeting, SumTable | None]],
    prices: Sequence[int],
    root: int,
    launch: int,
) -> _Profit:
    """The largest profit over all schemes. A kernel of the root alone is priced exactly."""
    exact = pricer(problem)
    mask = sum(1 << op for op in atoms.ops[root])
    schemes = [s for s in exact.terms[atoms.ops[root][0]] if all(s in exact.terms[op] for op in atoms.ops[root])]
    alone = min((exact.price(mask, scheme) for scheme in schemes), default=0)
    found = _Profit(max(0, prices[root] - alone * UNIT), 1 << root)
    for meeting, table in tables:
        if meeting.allowed >> root & 1:
            members = _members(atoms, meeting, root)
            profit = _cut(atoms, table, prices, members, root)
            if profit.amount - launch > found.amount:
                found = _Profit(profit.amount - launch, profit.atoms)
    return found


def _members(atoms: Atoms, meeting: Meeting, root: int) -> int:
    """Atoms after the root that some kernel of the scheme could hold beside it."""
    later = meeting.allowed & ~((1 << root) - 1) & ~meeting.clashes[root]
    members = 1 << root
    for atom in bits(later & ~(1 << root)):
        if not atoms.after[root] & atoms.before[atom] & ~later:
            members |= 1 << atom
    return members


def _cut(atoms: Atoms, table: SumTable | None, prices: Sequence[int], members: int, root: int) -> _Profit:
    """The most by which the prices of a set with the root can exceed its memory time."""
    if table is None:
        gaining = sum(1 << atom for atom in bits(members) if prices[atom] > 0) | 1 << root
        return _Profit(sum(prices[atom] for atom in bits(gaining)), gaining)
    network = Network()
    nodes = {atom: network.node() for atom in bits(members)}
    hope = 0
    for atom, node in nodes.items():
        gain = prices[atom] - table.fixed[atom] * UNIT
        hope += max(0, gain)
        network.arc(0, node, INFINITE if atom == root else max(0, gain))
        network.arc(node, 1, max(0, -gain))
        for between in bits(atoms.before[atom] & atoms.after[root] & members):
            network.arc(node, nodes[between], INFINITE)
        for price, users in table.writes[atom]:
            write = network.node()
            network.arc(node, write, price * UNIT)
            for user in bits(users):
                network.arc(write, nodes.get(user, 1), INFINITE)
    for price, readers, maker in table.keys:
        if readers & members:
            key = network.node()
            network.arc(key, nodes.get(maker.bit_length() - 1, 1), price * UNIT)
            for reader in bits(readers & members):
                network.arc(nodes[reader], key, INFINITE)
    least = network.maximum_flow()
    side = network.source_side()
    return _Profit(hope - least, sum(1 << atom for atom, node in nodes.items() if node in side))
