"""Which ops may be computed in several kernels. The checker shares nothing with this module.

A copy must give the same value wherever it runs, so it may not care when it runs: a pure loop op (``Op.recompute``)
that no order edge ties, of no variant, the only maker of temporaries that nothing aliases, and used by an op of no
variant: one whose users all belong to alternatives may have none that run, and must be computed all the same.
"""

from __future__ import annotations

from optfuse.problem.cost import topology
from optfuse.problem.instance import Instance
from optfuse.problem.legality import legal_index, mask_of
from optfuse.problem.memo import per_instance


@per_instance
def recomputable_ops(instance: Instance) -> int:
    """The ops that may be computed in several kernels, as a bitmask."""
    index = topology(instance)
    makers: dict[int, set[int]] = {}
    for op, facts in enumerate(instance.ops):
        for offer in facts.offers:
            for write in offer.writes:
                makers.setdefault(write.buffer, set()).add(op)
    shared = {buffer for buffer, ops in makers.items() if len(ops) > 1}
    shared |= {buffer.alias for buffer in instance.buffers if buffer.alias is not None}
    rules = instance.rules
    tied = {op for group in (*rules.fuse, *rules.single_kernel) for op in group}
    return mask_of(
        op
        for op, facts in enumerate(instance.ops)
        if facts.recompute
        and facts.kind == "loop"
        and legal_index(instance).mandatory >> op & 1
        and op not in tied
        and any(legal_index(instance).mandatory >> user & 1 for user, _ in index.users[op])
        and all(buffer is not None for _, buffer in (*index.users[op], *index.sources[op]))
        and all(
            instance.buffers[write.buffer].kind == "temporary"
            and instance.buffers[write.buffer].alias is None
            and write.buffer not in shared
            for offer in facts.offers
            for write in offer.writes
        )
    )
