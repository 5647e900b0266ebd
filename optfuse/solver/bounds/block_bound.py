"""A lower bound on the cost of a block without search: the memory traffic and launches of every partition."""

from __future__ import annotations

from optfuse.problem.cost import topology
from optfuse.problem.instance import Instance
from optfuse.problem.legality import legal_index
from optfuse.solver.bounds.cost_bound import cost_bound
from optfuse.solver.columns.pricing import pricer
from optfuse.solver.reduce.size_limits import fewest_kernels
from optfuse.solver.reduce.union_find import Components


def block_bound(problem: Instance) -> int:
    """A lower bound in picoseconds: launches of the fewest kernels, inputs read once, outputs written once.

    Ops outside variants always run. A buffer that no op of the block makes is read at least once, by its cheapest
    reader; a buffer that must reach memory is written once by each of its writers. Where values connect all ops of the
    block, k kernels pass at least k - 1 values between them. The result is never below ``cost_bound``, which knows of
    kernels that must follow each other.
    """
    prices = pricer(problem)
    mandatory = legal_index(problem).mandatory
    reads: dict[int, int] = {}
    memory = 0
    for op, offers in enumerate(prices.terms):
        if not mandatory >> op & 1:
            continue
        made_by = {buffer for term in offers.values() for (buffer, _), _, _, producers in term.reads if producers}
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
    return max(memory + launch * kernels + handed_on, cost_bound(problem, recompute=False))


def _least_crossing(problem: Instance) -> int:
    """The least cost of passing a value between two kernels, if values connect all ops; otherwise 0.

    The consumer reads the value; the cost of its one write is shared among all its readers.
    """
    prices, index = pricer(problem), topology(problem)
    components = Components(len(problem.ops))
    users: dict[int, int] = {}
    producers: dict[int, set[int]] = {}
    least_read: dict[int, int] = {}
    for op, sources in enumerate(index.sources):
        for source, buffer in sources:
            if buffer is None:
                continue
            components.join((source, op))
            users[buffer] = users.get(buffer, 0) + 1
            producers.setdefault(buffer, set()).add(source)
            read = min(
                min((price for (target, _), price, *_ in term.reads if target == buffer), default=0)
                for term in prices.terms[op].values()
            )
            least_read[buffer] = min(least_read.get(buffer, read), read)
    if problem.variants or len(components.groups()) > 1:
        return 0
    found: list[int] = []
    for buffer, mine in producers.items():
        write = min(
            sum(price for target, price, always in term.writes if target == buffer and not always)
            for producer in mine
            for term in prices.terms[producer].values()
        )
        found.append(least_read[buffer] + write // users[buffer] if len(mine) == 1 else 0)
    return min(found, default=0)
