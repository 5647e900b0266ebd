"""Which ops of a stretch to keep together, so that its columns can all be listed: no proof, a choice of where to cut.

A value that is cut is written and read. Of a chain of values the small ones are the places to cut: so what makes values
no smaller than those that it takes joins the first of its users.
"""

from __future__ import annotations

from optfuse.problem.cost import topology
from optfuse.problem.instance import ALONE
from optfuse.problem.legality import bits, common_schemes, mask_of
from optfuse.solver.joint.scope import Scope


def ties(scope: Scope, percent: int = 100) -> dict[int, int]:
    """By op of the scope: the ops, as a bitmask, that every column takes together with it, itself included.

    ``percent``: how many bytes, of those taken, must be made for a tie. Fewer make fewer, larger ties.
    """
    instance = scope.instance
    index = topology(instance)
    group = {op: 1 << op for op in bits(scope.ops)}
    alone = mask_of(op for op in group if set(index.offers[op]) == {ALONE})
    sealed = alone | scope.copies | mask_of(instance.rules.barrier)
    sealed |= mask_of(op for ops in instance.rules.single_kernel for op in ops)
    sizes = {storage.buffer: storage.bytes for storage in scope.storages}

    def moved(buffers: set[int]) -> int:
        return sum(sizes.get(scope.root[buffer], 0) for buffer in buffers)

    for op in sorted(group, reverse=True):
        mine = group[op]
        users, made, taken = _around(scope, mine)
        hosts = [user for user in users if user in group and not sealed >> user & 1]
        if mine & sealed or not hosts or made & _outputs(scope) or 100 * moved(made) < percent * moved(taken):
            continue
        joined = mine | group[min(hosts)]
        if common_schemes(instance, bits(joined)):
            for member in bits(joined):
                group[member] = joined
    return group


def _around(scope: Scope, mine: int) -> tuple[set[int], set[int], set[int]]:
    """Of some ops: who uses what they make, the buffers that they make for others, and those that they take."""
    index = topology(scope.instance)
    users: set[int] = set()
    made: set[int] = set()
    taken: set[int] = set()
    inside: set[int] = set()
    for member in bits(mine):
        for user, buffer in index.users[member]:
            if buffer is not None:
                inside.add(buffer)
                if not mine >> user & 1:
                    users.add(user)
                    made.add(buffer)
        taken.update(buffer for _, buffer in index.sources[member] if buffer is not None)
        taken.update(read.buffer for offer in index.offers[member].values() for read in offer.reads)
    return users, made, taken - inside


def _outputs(scope: Scope) -> set[int]:
    return {number for number, buffer in enumerate(scope.instance.buffers) if buffer.output}
