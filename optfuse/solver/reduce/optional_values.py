"""Find values that only some alternatives use: whether a kernel writes them depends on the alternatives chosen.

Where op ``a`` makes a value that op ``b`` of an alternative takes, the kernel of ``a`` writes it only if that
alternative runs. So the price of the one kernel depends on a decision elsewhere, and blocks that share such a value are
decided together (``solver.reduce.blocks``), choice by choice (``solver.strategies.variant_enumeration``).
"""

from __future__ import annotations

from optfuse.problem.cost import topology
from optfuse.problem.instance import Instance
from optfuse.problem.instance_cache import per_instance
from optfuse.problem.legality import legal_index, twin_alternatives


@per_instance
def optional_uses(instance: Instance) -> tuple[tuple[int, int], ...]:
    """Pairs (op, user): the user takes a value of the op, and need not run where the op does.

    A value that each alternative of a variant takes from memory is used in any case.
    """
    if not instance.variants:
        return ()
    index, always = legal_index(instance), topology(instance).always
    taken = _taken_in_any_case(instance)
    pairs: dict[tuple[int, int], None] = {}
    for edge in instance.edges:
        if edge.buffer is None or edge.buffer in always or index.mandatory >> edge.dst & 1:
            continue
        if (edge.src, edge.dst, edge.buffer) in taken:
            continue
        if not (index.certain(1 << edge.src) | index.rivals[edge.src]) >> edge.dst & 1:
            pairs[edge.src, edge.dst] = None
    return tuple(pairs)


def _taken_in_any_case(instance: Instance) -> set[tuple[int, int, int | None]]:
    """The edges (op, user, buffer) to alternatives of which any takes the buffer from memory, whichever runs."""
    twins = {op: ops for ops in twin_alternatives(instance) for op in ops}
    users: dict[tuple[int, int | None], set[int]] = {}
    for edge in instance.edges:
        if edge.dst in twins and not edge.schemes:
            users.setdefault((edge.src, edge.buffer), set()).add(edge.dst)
    return {
        (source, user, buffer)
        for (source, buffer), mine in users.items()
        for user in mine
        if mine.issuperset(twins[user])
    }
