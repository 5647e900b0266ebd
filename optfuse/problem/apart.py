"""Which ops no kernel of a scheme can hold together, for what lies on the paths between them: all pairs at once.

A kernel is convex: it takes in whatever lies between two of its ops. If that is an op that does not offer the scheme,
or both ends of an edge that the scheme does not allow, the two ops are apart, and so are all before the one from all
behind the other. One sweep over the edges in each direction finds them, with bitmasks for sets.
"""

from __future__ import annotations

from collections.abc import Sequence

from optfuse.problem.instance import Instance
from optfuse.problem.legality import legal_index


def kept_apart(instance: Instance, offering: int, barred: Sequence[int]) -> list[int]:
    """By op: those behind and before it that are apart from it.

    ``offering`` are the ops that offer the scheme, as a mask; ``barred[op]`` those next to an op, along an edge that
    the scheme does not allow. Paths count that are certain to run: along ops of no variant.
    """
    index = legal_index(instance)
    reach = index.reach()
    count = len(instance.ops)
    users: list[list[int]] = [[] for _ in range(count)]
    sources: list[list[int]] = [[] for _ in range(count)]
    for edge in instance.edges:
        if index.mandatory >> edge.src & index.mandatory >> edge.dst & 1:
            users[edge.src].append(edge.dst)
            sources[edge.dst].append(edge.src)
    apart = [0] * count
    for order, near, far in (
        (reversed(range(count)), users, reach.descendants),
        (range(count), sources, reach.ancestors),
    ):
        beyond = [0] * count
        for op in order:
            found = 0 if offering >> op & 1 else far[op]
            for other in near[op]:
                found |= beyond[other]
                if barred[op] >> other & 1:
                    found |= 1 << other | far[other]
            beyond[op] = found
            apart[op] |= found
    return apart
