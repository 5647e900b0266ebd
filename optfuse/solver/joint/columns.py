"""Columns of the joint model: kernels with the buffers that they load and write.

Without recomputation a kernel's writes follow from its ops, except for values that only ops of alternatives use: those
are written or not. With recomputation, an op of ``problem.recompute.recomputable_ops`` may be in several kernels, at
most one of which writes its value. A kernel may then hold both ends of a path that leaves it, if the path starts at a
recomputed op.

A column in which a recomputed op is idle (neither written, nor used in it, nor linking others) is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from optfuse.problem.cost import kernel_cost, topology
from optfuse.problem.instance import ALONE, Instance
from optfuse.problem.legality import is_connected, is_legal_but_for_paths, legal_index
from optfuse.problem.op_masks import bits, mask_of
from optfuse.problem.reach import Reach
from optfuse.problem.solution import Kernel
from optfuse.solver.control.clock import WALL, Clock

#: Sets grown between two looks at the clock.
STEPS = 256


@dataclass(frozen=True, slots=True)
class Column:
    """A kernel that may be chosen, with the buffers that it reads from memory (``loads``) and writes."""

    mask: int
    scheme: int
    writes: tuple[int, ...]
    cost: int
    loads: tuple[int, ...]

    @property
    def ops(self) -> tuple[int, ...]:
        """The ops, ascending."""
        return tuple(bits(self.mask))

    @property
    def kernel(self) -> Kernel:
        """The column as a kernel of a schedule."""
        return Kernel(self.ops, self.scheme, self.writes)


@dataclass(frozen=True, slots=True)
class ColumnPool:
    """Columns. ``complete``: there are no others. ``steps``: the sets of ops examined for them."""

    columns: tuple[Column, ...]
    complete: bool
    steps: int = 0


def list_columns(
    instance: Instance,
    within: int,
    recomputable: int = 0,
    limit: int = 1 << 30,
    deadline: float | None = None,
    groups: Mapping[int, int] | None = None,
    max_steps: int | None = None,
    clock: Clock = WALL,
) -> ColumnPool:
    """All columns made of the ops of ``within``, of which those of ``recomputable`` may be computed several times.

    ``groups``: by op, the ops that every column takes together with it. Stops at ``limit`` columns, after ``max_steps``
    sets or at the deadline (a time of ``clock``), and says so.
    """
    builder = ColumnBuilder(instance, recomputable)
    best: dict[tuple[int, tuple[int, ...], tuple[int, ...]], Column] = {}
    steps = 0
    for scheme in range(len(instance.schemes)):
        for mask in _grown(instance, scheme, within, recomputable, groups):
            steps += 1
            late = deadline is not None and not steps % STEPS and clock.now() >= deadline
            if late or len(best) >= limit or (max_steps is not None and steps > max_steps):
                return ColumnPool(tuple(best.values()), complete=False, steps=steps)
            for column in builder.columns(mask, scheme):
                key = (column.mask, column.writes, column.loads)
                if key not in best or column.cost < best[key].cost:
                    best[key] = column
    return ColumnPool(tuple(best.values()), complete=True, steps=steps)


@dataclass(frozen=True, slots=True)
class _Facts:
    """Of an op in a scheme: its inputs (buffer, producers), its outputs (buffer, whether it must reach memory, users),
    and the ops that exclude it.
    """

    wanted: tuple[tuple[int, int], ...]
    writes: tuple[tuple[int, bool, int], ...]
    rivals: int


class ColumnBuilder:
    """Turns sets of ops into columns."""

    def __init__(self, instance: Instance, recomputable: int = 0) -> None:
        """``recomputable``: ops that may be computed in several kernels, a subset of ``recomputable_ops``."""
        self.instance = instance
        self.recomputable = recomputable
        self.index = topology(instance)
        self.legal = legal_index(instance)
        self.reach = self.legal.reach()
        self._known: dict[tuple[int, int], _Facts] = {}

    def column(self, ops: Sequence[int], scheme: int, writes: Sequence[int]) -> Column:
        """The column of a kernel that is known to be legal."""
        mask = mask_of(ops)
        cost = kernel_cost(self.instance, ops, scheme, writes)
        return Column(mask, scheme, tuple(sorted(writes)), cost, self.loads(mask, scheme))

    def columns(self, mask: int, scheme: int) -> Iterator[Column]:
        """The columns of some ops, one for each useful choice of writes; none where no kernel is legal."""
        ops = tuple(bits(mask))
        if not is_legal_but_for_paths(self.instance, ops, scheme):
            return
        must, may = self._writes(mask, scheme)
        loads = self.loads(mask, scheme)
        for count in range(len(may) + 1):
            for some in combinations(may, count):
                writes = tuple(sorted((*must, *some)))
                if self._useful(mask, scheme, writes):
                    yield Column(mask, scheme, writes, kernel_cost(self.instance, ops, scheme, writes), loads)

    def loads(self, mask: int, scheme: int) -> tuple[int, ...]:
        """The buffers that a kernel of some ops loads from memory."""
        taken: set[int] = set()
        for op in bits(mask):
            for buffer, producers in self._facts(op, scheme).wanted:
                if not producers & mask:
                    taken.add(buffer)
        return tuple(sorted(taken))

    def _facts(self, op: int, scheme: int) -> _Facts:
        key = op, scheme
        found = self._known.get(key)
        if found is None:
            producers = {read.buffer: 0 for read in self.index.offers[op][scheme].reads}
            for source, buffer in self.index.sources[op]:
                if buffer is not None:
                    producers[buffer] = producers.get(buffer, 0) | 1 << source
            users: dict[int, int] = {}
            for user, buffer in self.index.users[op]:
                if buffer is not None:
                    users[buffer] = users.get(buffer, 0) | 1 << user
            writes = tuple((w[0], w[3], users.get(w[0], 0)) for w in self.index.priced[op][scheme].writes)
            rivals = mask_of(self.index.rivals.get(op, ()))
            found = self._known[key] = _Facts(tuple(producers.items()), writes, rivals)
        return found

    def _writes(self, mask: int, scheme: int) -> tuple[list[int], list[int]]:
        """The buffers that a kernel must write, and those that it may write."""
        must: set[int] = set()
        may: set[int] = set()
        between = self.reach.between(mask) if self.recomputable & mask else 0
        certain = self.legal.certain(mask)
        rivals = 0
        for op in bits(mask):
            rivals |= self._facts(op, scheme).rivals
        for op in bits(mask):
            facts = self._facts(op, scheme)
            for buffer, always, users in facts.writes:
                if self.recomputable >> op & 1:
                    # Where a path leaves from here and comes back, another kernel recomputes the value on it.
                    if (always or users) and not self.reach.descendants[op] & between:
                        may.add(buffer)
                elif always or users & ~mask & certain:
                    must.add(buffer)
                elif users & self.recomputable or users & ~mask & ~rivals:
                    may.add(buffer)
        return sorted(must), sorted(may - must)

    def _useful(self, mask: int, scheme: int, writes: tuple[int, ...]) -> bool:
        """Whether each recomputed op is needed: its value is written or used in here, or it alone links the others."""
        idle = 0
        for op in bits(mask & self.recomputable):
            written = any(write[0] in writes for write in self.index.priced[op][scheme].writes)
            if not written and not any(mask >> user & 1 for user, _ in self.index.users[op]):
                idle |= 1 << op
        if not mask & ~self.recomputable and not writes:
            return False
        if idle and not self.instance.limits.connected:
            return False
        return not any(is_connected(self.legal, mask & ~(1 << op), scheme) for op in bits(idle))


def _grown(
    instance: Instance, scheme: int, within: int, recomputable: int, groups: Mapping[int, int] | None
) -> Iterator[int]:
    """Sets of ops that may be kernels of a scheme by links, paths and forbidden pairs, each once.

    A set grows from its first op. Adding a neighbour adds the ops on paths from its ops, except paths from recomputable
    ones; each neighbour is first taken, then forbidden for the rest of the branch.
    """
    index = legal_index(instance)
    allowed = mask_of(op for op in bits(within) if scheme in index.footprints[op])
    if scheme == ALONE:
        yield from (1 << op for op in bits(allowed))
        return
    links, clashes = _links_and_clashes(instance, scheme, allowed)
    reach = index.reach()
    for root in bits(allowed):
        start = _closure(reach, 1 << root, recomputable, groups)
        forbidden = ~allowed | (1 << root) - 1
        if start & forbidden:
            continue
        near = 0
        for op in bits(start):
            forbidden |= clashes[op]
            near |= links[op]
        if start & forbidden:
            continue
        stack = [(start, forbidden, near)]
        yield start
        while stack:
            mask, banned, near = stack.pop()
            for op in bits(near & ~mask & ~banned):
                if banned >> op & 1:
                    continue
                grown = _closure(reach, mask | 1 << op, recomputable, groups)
                fresh = grown & ~mask
                banned_then = banned
                near_then = near
                for one in bits(fresh & allowed):
                    banned_then |= clashes[one]
                    near_then |= links[one]
                if not grown & banned_then and grown.bit_count() <= max(1, instance.limits.max_ops):
                    yield grown
                    stack.append((grown, banned_then, near_then))
                banned |= 1 << op


def _closure(reach: Reach, mask: int, recomputable: int, groups: Mapping[int, int] | None) -> int:
    """A set with its groups' ops and the ops on paths between its ops, except paths from recomputable ones."""
    below = above = seen = 0
    while mask & ~seen:
        fresh = mask & ~seen
        seen |= fresh
        for op in bits(fresh):
            above |= reach.ancestors[op]
            if not recomputable >> op & 1:
                below |= reach.descendants[op]
            if groups is not None:
                mask |= groups.get(op, 0)
        mask |= above & below
    return mask


def _links_and_clashes(instance: Instance, scheme: int, allowed: int) -> tuple[dict[int, int], dict[int, int]]:
    """By op: the ops linked to it in the scheme, and the ops that may not share a kernel with it."""
    index = legal_index(instance)
    links = dict.fromkeys(bits(allowed), 0 if instance.limits.connected else allowed)
    clashes = {op: index.apart[op] for op in bits(allowed)}
    readers: dict[tuple[int, int], int] = {}
    for op in bits(allowed):
        for after, schemes in index.successors[op]:
            if allowed >> after & 1:
                table = links if scheme in schemes else clashes
                table[op] |= 1 << after
                table[after] |= 1 << op
        for key in index.footprints[op][scheme]:
            readers[key] = readers.get(key, 0) | 1 << op
    for group in readers.values():
        for op in bits(group):
            links[op] |= group
    return links, clashes
