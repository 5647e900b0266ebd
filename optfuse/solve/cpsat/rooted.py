"""The most profitable kernel of each root: what prices out candidates that nobody has listed.

Give every atom a price. A kernel that costs less than the prices of its atoms makes a *profit*; its *root* is its first
atom. Among all sets that hold the root, the one of largest profit is a minimum cut: whoever is inside brings in what
lies on paths from the root, and the set pays for reads that nobody inside makes and for writes that somebody outside
needs. The cut knows nothing of clashes, of paths between two other atoms, of connectivity; where its set breaks one of
these, branch: leave out one end or the other, or take both in with all that lies between. Compute time is not counted,
nor what a looped or starved reduction pays on top, so that a profit is an upper bound in any case.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from optfuse.problem.instance import Instance
from optfuse.problem.legality import bits, mask_of
from optfuse.solve.clock import WALL, Clock
from optfuse.solve.cpsat.atoms import Atoms
from optfuse.solve.cpsat.cut import minimum_cut
from optfuse.solve.cpsat.meeting import Meeting, meet
from optfuse.solve.cpsat.pricing import pricer
from optfuse.solve.cpsat.relaxation import UNIT
from optfuse.solve.cpsat.sums import SumTable, sum_table

#: Minimum cuts for one root in one scheme, after which the bound is taken as it is: at first, and at most.
CUTS = 40
MOST_CUTS = 2560
#: What a cut takes for each atom, roughly.
CUT_SECONDS = 2e-5


@dataclass(frozen=True, slots=True)
class Profit:
    """At most what a kernel of some root and scheme can gain, in 1/``UNIT`` picoseconds, and the set that gains it."""

    amount: int
    atoms: int
    scheme: int


@dataclass(frozen=True, slots=True, order=True)
class _Node:
    """Sets of ``members`` that hold all of ``forced``; the best of them gains -``loss`` with ``inside``."""

    loss: int
    inside: int
    forced: int
    members: int


class Roots:
    """Finds profits in one block."""

    def __init__(self, problem: Instance, atoms: Atoms, deadline: float = math.inf, clock: Clock = WALL) -> None:
        """Look up what every cut needs. After the deadline, a time of the clock, profits are looser bounds.

        Where it passes meanwhile, not all is looked up, and nothing may be asked.
        """
        self.atoms = atoms
        self._deadline, self._clock = deadline, clock
        self._connected = problem.limits.connected
        self._launch = min((device.launch_ps for device in problem.devices), default=0) * UNIT
        self._tables: list[tuple[Meeting, SumTable | None]] = []
        self._apart: dict[int, list[int]] = {}
        self._cuts = CUTS
        for scheme in range(1, len(problem.schemes)):
            if clock.now() >= deadline:
                return
            meeting = meet(problem, atoms, scheme)
            if meeting.allowed:
                self._apart[scheme] = apart(atoms, meeting)
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
                node = self._best(meeting, table, prices, root)
                if node is not None:
                    inside = self._dive(meeting, table, prices, node)
                    found.append(Profit(-node.loss - self._launch, inside, meeting.scheme))
        return [profit for profit in found if profit.amount > 0]

    def look_closer(self) -> bool:
        """Allow more cuts for each root; False when there are as many as there may be."""
        self._cuts *= 4
        return self._cuts <= MOST_CUTS

    def _best(self, meeting: Meeting, table: SumTable | None, prices: Sequence[int], root: int) -> _Node | None:
        """The set of largest profit, by best-first search, or the last one looked at when there were too many cuts."""
        later = meeting.allowed & ~((1 << root) - 1)
        heap = [node for node in (self._node(meeting, table, prices, 1 << root, later),) if node is not None]
        cuts = 1
        while heap:
            node = heapq.heappop(heap)
            if cuts >= self._cuts or self._clock.now() >= self._deadline:
                return node
            children = list(self._branches(meeting, node))
            if not children:
                return node
            for forced, members in children:
                child = self._node(meeting, table, prices, forced, members)
                cuts += 1
                if child is not None:
                    heapq.heappush(heap, child)
        return None

    def _dive(self, meeting: Meeting, table: SumTable | None, prices: Sequence[int], node: _Node) -> int:
        """A set of a node that is a kernel and makes a good profit; the node's own set if it is one, or if none is."""
        best: _Node | None = node
        while best is not None and self._clock.now() < self._deadline:
            children = list(self._branches(meeting, best))
            if not children:
                return best.inside
            nodes = (self._node(meeting, table, prices, forced, members) for forced, members in children)
            best = min((child for child in nodes if child is not None), default=None)
        return node.inside

    def _node(
        self, meeting: Meeting, table: SumTable | None, prices: Sequence[int], forced: int, members: int
    ) -> _Node | None:
        """The best set between two; None when there is none that pays for its launch."""
        members = self._compatible(meeting, forced, members)
        if self._connected:
            members = _component(meeting, members, forced & -forced & members)
        if forced & ~members:
            return None
        self._clock.spend(CUT_SECONDS * members.bit_count())
        gain, inside = minimum_cut(self.atoms, table, prices, forced, members)
        return _Node(-gain, inside, forced, members) if gain > self._launch else None

    def _compatible(self, meeting: Meeting, forced: int, members: int) -> int:
        """The members that can be with every forced atom, together with all that lies between the two."""
        before, after, apart = self.atoms.before, self.atoms.after, self._apart[meeting.scheme]
        for fixed in bits(forced):
            members &= ~apart[fixed]
        for fixed in bits(forced):
            for gone in bits((before[fixed] | after[fixed]) & ~members):
                # What lies beyond a missing atom, seen from the forced one, cannot be there either.
                members &= ~(after[gone] if after[fixed] >> gone & 1 else before[gone])
        return members

    def _branches(self, meeting: Meeting, node: _Node) -> Iterator[tuple[int, int]]:
        """Parts of a node, as (forced, members), that together hold all its kernels; nothing if its set is one."""
        apart = self._apart[meeting.scheme]
        torn = max(bits(node.inside), key=lambda atom: (apart[atom] & node.inside).bit_count())
        enemies = apart[torn] & node.members
        if enemies & node.inside:
            # Either nobody who shuns all of these is there, or one is, and then these are not.
            alike = mask_of(atom for atom in bits(node.members) if not enemies & ~apart[atom])
            for gone in (enemies, alike):
                if not gone & node.forced:
                    yield node.forced, node.members & ~gone
            return
        pair = self._broken_pair(node)
        if pair is not None:
            one, other, both = pair
            for atom in (one, other):
                if not node.forced >> atom & 1:
                    yield node.forced, node.members & ~(1 << atom)
            if both:
                yield node.forced | 1 << one | 1 << other, node.members
            return
        part = _component(meeting, node.inside, node.forced & -node.forced)
        if not self._connected or part == node.inside:
            return
        yield node.forced, node.members & ~(node.inside & ~part)
        reach = 0
        for atom in bits(part):
            reach |= meeting.links[atom]
        members = node.members
        for step in bits(reach & node.members & ~node.inside):
            yield node.forced | 1 << step, members
            members &= ~(1 << step)

    def _broken_pair(self, node: _Node) -> tuple[int, int, bool] | None:
        """Two atoms of a set with something between them outside; and whether both might be taken."""
        for atom in bits(node.inside):
            later = self.atoms.after[atom] & node.inside
            for other in bits(later):
                between = self.atoms.after[atom] & self.atoms.before[other]
                if between & ~node.inside:
                    return atom, other, not between & ~node.members
        return None


def apart(atoms: Atoms, meeting: Meeting) -> list[int]:
    """For each atom those that no kernel of a scheme holds beside it: between the two lie atoms that clash."""
    count = len(atoms.ops)
    sources = [list(bits(mask & atoms.before[atom])) for atom, mask in enumerate(atoms.sources)]
    users: list[list[int]] = [[] for _ in range(count)]
    for atom, mine in enumerate(sources):
        for source in mine:
            users[source].append(atom)
    found = [0] * count
    for order, near, far in ((reversed(range(count)), users, atoms.after), (range(count), sources, atoms.before)):
        beyond = _beyond(meeting, order, near, far)
        found = [one | other for one, other in zip(found, beyond, strict=True)]
    for atom in bits(meeting.allowed):
        _beside(atoms, meeting, atom, found)
    return [mask & ~(1 << atom) for atom, mask in enumerate(found)]


def _beyond(meeting: Meeting, order: Iterable[int], near: Sequence[Sequence[int]], far: Sequence[int]) -> list[int]:
    """For each atom what lies behind a clash on a path from it. ``order`` has those next to an atom before it."""
    beyond = [0] * len(far)
    for atom in order:
        if not meeting.allowed >> atom & 1:
            # Who stands on both sides of it would have to take it in.
            beyond[atom] = far[atom]
        else:
            for other in bits(meeting.clashes[atom] & far[atom]):
                beyond[atom] |= 1 << other | far[other]
        for other in near[atom]:
            beyond[atom] |= beyond[other]
    return beyond


def _beside(atoms: Atoms, meeting: Meeting, one: int, found: list[int]) -> None:
    """Note who has to take in both an atom and one that clashes with it, where no path leads from one to the other."""
    for other in bits(meeting.clashes[one] & ~atoms.after[one] & ~atoms.before[one] & ~(1 << one)):
        found[one] |= 1 << other
        above, below = atoms.before[one] & atoms.before[other], atoms.after[one] & atoms.after[other]
        for atom in bits(above):
            found[atom] |= below
        for atom in bits(below):
            found[atom] |= above


def _component(meeting: Meeting, mask: int, start: int) -> int:
    """What links lead to from ``start`` inside a set."""
    part = frontier = start
    while frontier:
        near = 0
        for atom in bits(frontier):
            near |= meeting.links[atom]
        frontier = near & mask & ~part
        part |= frontier
    return part
