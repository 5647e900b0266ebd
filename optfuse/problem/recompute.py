"""Which ops may be recomputed in several kernels. The checker shares no code with this module.

A recomputed value must be the same wherever and whenever it is computed: the op is a pure loop op (``Op.recompute``)
without order edges, of no variant, and the only producer of temporaries without aliases. It also has a consumer of no
variant: otherwise there may be no consumer that runs, although the op must.
"""

from __future__ import annotations

from optfuse.problem.cost import topology
from optfuse.problem.instance import Instance
from optfuse.problem.instance_cache import per_instance
from optfuse.problem.legality import legal_index
from optfuse.problem.op_masks import mask_of


@per_instance
def recomputable_ops(instance: Instance) -> int:
    """The ops that may be computed in several kernels, as a bitmask."""
    index = topology(instance)
    producers: dict[int, set[int]] = {}
    for op, facts in enumerate(instance.ops):
        for offer in facts.offers:
            for write in offer.writes:
                producers.setdefault(write.buffer, set()).add(op)
    shared = {buffer for buffer, ops in producers.items() if len(ops) > 1}
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
