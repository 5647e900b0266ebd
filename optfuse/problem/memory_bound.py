"""Prove by maximum flow that every kernel of a scheme is memory-bound.

The compute time of a kernel is the sum over its ops; its memory time is at least the price of its reads from outside
and its writes for outside. The set of ops whose compute exceeds this memory time the most is a minimum cut: each op's
compute flows into the reads and writes that it needs. If all of it reaches the sink, no kernel has a compute time above
its memory time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from optfuse.problem.cost import GOP, MIB, Topology, topology
from optfuse.problem.instance import Instance
from optfuse.problem.max_flow import INFINITE, Network


def is_memory_bound(problem: Instance, scheme: int, late: Callable[[], bool] = lambda: False) -> bool:
    """Whether no kernel of the scheme, legal or not, has a compute time above its memory time. True is a proof.

    Once it is ``late``, the search for a proof is given up.
    """
    index = topology(problem)
    ops = [op for op, offers in enumerate(index.priced) if scheme in offers]
    network = Network()
    nodes = {op: network.node() for op in ops}
    compute = 0
    for op in ops:
        compute += index.compute[op] // GOP
        network.arc(0, nodes[op], index.compute[op] // GOP)
        for buffer, price, _, always in index.priced[op][scheme].writes:
            users = [user for user, carried in index.users[op] if carried == buffer]
            if always or any(user not in nodes for user in users):
                network.arc(nodes[op], 1, price // MIB)
            elif users:
                write = network.node()
                network.arc(nodes[op], write, price // MIB)
                for user in users:
                    network.arc(write, nodes[user], INFINITE)
    for price, readers, producers in _reads(index, ops, scheme):
        if len(producers) <= 1:
            key = network.node()
            network.arc(key, nodes.get(next(iter(producers), -1), 1), price // MIB)
            for reader in readers:
                network.arc(nodes[reader], key, INFINITE)
    return network.maximum_flow(late) == compute


def _reads(index: Topology, ops: Iterable[int], scheme: int) -> list[tuple[int, list[int], set[int]]]:
    """(least price, readers, producers) of each key; keys whose readers have different producers are left out."""
    prices: dict[tuple[int, int], int] = {}
    readers: dict[tuple[int, int], list[int]] = {}
    producers: dict[tuple[int, int], set[int]] = {}
    mixed: set[tuple[int, int]] = set()
    for op in ops:
        for buffer, footprint, first, _, _ in index.priced[op][scheme].reads:
            key = (buffer, footprint)
            mine = {source for source, carried in index.sources[op] if carried == buffer}
            prices[key] = min(prices.get(key, first), first)
            readers.setdefault(key, []).append(op)
            if producers.setdefault(key, mine) != mine:
                mixed.add(key)
    return [(prices[key], readers[key], producers[key]) for key in prices if key not in mixed]
