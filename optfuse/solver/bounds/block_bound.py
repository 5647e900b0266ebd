"""A lower bound that needs no search: what must cross memory however a block is partitioned."""

from __future__ import annotations

from optfuse.problem.cost import topology
from optfuse.problem.instance import Instance
from optfuse.problem.legality import legal_index
from optfuse.solver.bounds.cost_bound import cost_bound
from optfuse.solver.columns.pricing import pricer
from optfuse.solver.reduce.components import Components
from optfuse.solver.reduce.limits import fewest_kernels


def block_bound(problem: Instance) -> int:
    """Launches of the fewest kernels, one pass over what nobody inside makes or only outsiders take, and crossings.

    Every op of no variant runs. A buffer that no op of the block makes is read at least once by each distinct reader's
    cheapest footprint, together at least once; a buffer that must reach memory is written once by each of its writers.
    Where values connect the whole block, they connect its kernels: one fewer than kernels are handed on at least. The
    bound of ``cost_bound``, which knows of kernels that must follow each other, counts where it is better.
    """
    prices = pricer(problem)
    mandatory = legal_index(problem).mandatory
    reads: dict[int, int] = {}
    memory = 0
    for op, offers in enumerate(prices.terms):
        if not mandatory >> op & 1:
            continue
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
    kernels = fewest_kernels(problem)
    handed_on = (kernels - 1) * _least_crossing(problem) if kernels > 1 else 0
    return max(memory + launch * kernels + handed_on, cost_bound(problem, copies=False))


def _least_crossing(problem: Instance) -> int:
    """What it costs at least to hand a value from one kernel to another, if values connect all ops; otherwise 0.

    Two kernels next to each other share a value, which the one reads that does not make it; its write is shared with
    all others that read it.
    """
    prices, index = pricer(problem), topology(problem)
    components = Components(len(problem.ops))
    users: dict[int, int] = {}
    makers: dict[int, set[int]] = {}
    least_read: dict[int, int] = {}
    for op, sources in enumerate(index.sources):
        for source, buffer in sources:
            if buffer is None:
                continue
            components.join((source, op))
            users[buffer] = users.get(buffer, 0) + 1
            makers.setdefault(buffer, set()).add(source)
            read = min(
                min((price for (target, _), price, *_ in term.reads if target == buffer), default=0)
                for term in prices.terms[op].values()
            )
            least_read[buffer] = min(least_read.get(buffer, read), read)
    if problem.variants or len(components.groups()) > 1:
        return 0
    found: list[int] = []
    for buffer, mine in makers.items():
        write = min(
            sum(price for target, price, always in term.writes if target == buffer and not always)
            for maker in mine
            for term in prices.terms[maker].values()
        )
        found.append(least_read[buffer] + write // users[buffer] if len(mine) == 1 else 0)
    return min(found, default=0)
