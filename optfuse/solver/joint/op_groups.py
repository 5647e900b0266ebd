"""Group ops of a window so that all columns of the groups can be listed. A heuristic.

A value between two kernels is written and read, so kernels should be cut at small values: an op whose outputs are no
smaller than its inputs joins the first of its consumers.
"""

from __future__ import annotations

from optfuse.problem.cost import topology
from optfuse.problem.instance import ALONE
from optfuse.problem.legality import common_schemes
from optfuse.problem.op_masks import bits, mask_of
from optfuse.solver.joint.scope import Scope


def op_groups(scope: Scope, percent: int = 100) -> dict[int, int]:
    """By op of the scope: its group as a bitmask, itself included.

    An op joins a consumer when its outputs have at least ``percent`` of the bytes of its inputs.
    """
    instance = scope.instance
    index = topology(instance)
    group = {op: 1 << op for op in bits(scope.ops)}
    alone = mask_of(op for op in group if set(index.offers[op]) == {ALONE})
    sealed = alone | scope.recomputable | mask_of(instance.rules.barrier)
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
    """Of some ops: their consumers, the buffers that they make for them, and the buffers that they read."""
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
