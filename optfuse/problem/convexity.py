"""Pairs of ops that no kernel of a scheme can hold together because of the ops on paths between them.

A kernel is convex: it holds all ops on paths between two of its ops. If one of these does not offer the scheme, or the
scheme does not allow an edge between them, the two ops are kept apart, and so are all ancestors of the first from all
descendants of the second. One sweep over the edges in each direction finds all pairs, with bitmasks for sets.
"""

from __future__ import annotations

from collections.abc import Sequence

from optfuse.problem.instance import Instance
from optfuse.problem.legality import legal_index


def kept_apart(instance: Instance, offering: int, barred: Sequence[int]) -> list[int]:
    """By op: its descendants and ancestors that are kept apart from it, as bitmasks.

    ``offering`` is the bitmask of the ops that offer the scheme; ``barred[op]`` that of the op's neighbours along edges
    that the scheme does not allow. Only paths that are there whichever alternatives run count.
    """
    index = legal_index(instance)
    reach = index.reach()
    count = len(instance.ops)
    users: list[list[int]] = [[] for _ in range(count)]
    sources: list[list[int]] = [[] for _ in range(count)]
    for edge in instance.edges:
        if index.standing >> edge.src & index.standing >> edge.dst & 1:
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
