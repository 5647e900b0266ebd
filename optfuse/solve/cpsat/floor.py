"""A lower bound that needs no search: what must cross memory however a block is partitioned."""

from __future__ import annotations

from optfuse.problem.instance import Instance
from optfuse.problem.legality import legal_index
from optfuse.solve.cpsat.pricing import pricer


def floor_cost(problem: Instance) -> int:
    """Launches of the fewest kernels, and one pass over what nobody inside makes or only outsiders take.

    Every op of no variant runs. A buffer that no op of the block makes is read at least once by each distinct reader's
    cheapest footprint, together at least once; a buffer that must reach memory is written once by each of its writers.
    """
    prices = pricer(problem)
    mandatory = legal_index(problem).mandatory
    reads: dict[int, int] = {}
    memory = 0
    count = 0
    for op, offers in enumerate(prices.terms):
        if not mandatory >> op & 1:
            continue
        count += 1
        made_by = {buffer for term in offers.values() for (buffer, _), _, _, makers in term.reads if makers}
        for buffer in {key[0] for term in offers.values() for key, *_ in term.reads} - made_by:
            least = min(
                min((price for key, price, *_ in term.reads if key[0] == buffer), default=0) for term in offers.values()
            )
            reads[buffer] = max(reads.get(buffer, 0), least)
        written = {buffer for term in offers.values() for buffer, _, always in term.writes if always}
        for buffer in written:
            memory += min(
                sum(price for target, price, always in term.writes if target == buffer and always)
                for term in offers.values()
            )
    memory += sum(reads.values())
    launch = min((device.launch_ps for device in problem.devices), default=0)
    return memory + launch * -(-count // max(1, problem.limits.max_ops))
