"""A lower bound on the cost of every solution, without search, with or without recomputation.

Ops that can only run alone are charged their own price. For the others:

- inputs are read and outputs written once, and so is a value between two ops that can never share a kernel;
- such a value is written by one kernel before any kernel that depends on it runs, so the longest chain of them bounds
  the number of kernels from below;
- so does the limit on a kernel's ops.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from optfuse.problem.cost import MIB, Topology, default_writes, kernel_cost, topology
from optfuse.problem.instance import ALONE, Edge, Instance
from optfuse.problem.launches import never_shares
from optfuse.problem.legality import legal_index
from optfuse.problem.op_masks import bits, mask_of


def cost_bound(instance: Instance, *, recompute: bool = True, quick: bool = False) -> int:
    """A lower bound in picoseconds: launches of the fewest kernels, and the memory traffic that no fusion avoids.

    ``recompute``: it holds even where ops may be computed in several kernels. ``quick`` leaves out the traffic and the
    longest chain, which take half a second for 20,000 ops.
    """
    mandatory = legal_index(instance).mandatory if instance.variants else (1 << len(instance.ops)) - 1
    joins = mask_of(n for n, op in enumerate(instance.ops) if any(offer.scheme != ALONE for offer in op.offers))
    shared = mandatory & joins
    kernels = -(-shared.bit_count() // max(1, instance.limits.max_ops))
    launch = min((device.launch_ps for device in instance.devices), default=0)
    alone = sum(_cost_alone(instance, op, mandatory) for op in bits(mandatory & ~joins))
    if quick or not shared:
        return alone + kernels * launch
    facts = _Facts(instance, topology(instance), mandatory, joins)
    kernels = max(_longest_chain(facts, recompute=recompute), kernels)
    return alone + kernels * launch + _crossing(facts)


def shared_bound(instance: Instance) -> int:
    """``cost_bound`` where kernels may share launches: it holds for the objective less what they save.

    Kernels in a row wait for each other, so each has a launch of its own. An op that runs alone may share one.
    """
    mandatory = legal_index(instance).mandatory if instance.variants else (1 << len(instance.ops)) - 1
    joins = mask_of(n for n, op in enumerate(instance.ops) if any(offer.scheme != ALONE for offer in op.offers))
    saved = [max(0, device.launch_ps - device.shared_ps) if device.shared_ps else 0 for device in instance.devices]
    alone = sum(
        _cost_alone(instance, op, mandatory) - (0 if never_shares(instance, op) else saved[instance.ops[op].device])
        for op in bits(mandatory & ~joins)
    )
    if not mandatory & joins:
        return alone
    facts = _Facts(instance, topology(instance), mandatory, joins)
    in_a_row = max(1, _longest_chain(facts, recompute=True))
    return alone + in_a_row * min(device.launch_ps for device in instance.devices) + _crossing(facts)


def _cost_alone(instance: Instance, op: int, mandatory: int) -> int:
    """The least cost of an op that runs alone: values that only alternatives use need not be written."""
    if not instance.variants:
        return kernel_cost(instance, (op,), ALONE)
    return kernel_cost(instance, (op,), ALONE, default_writes(instance, (op,), ALONE, set(bits(mandatory))))


@dataclass(frozen=True, slots=True)
class _Facts:
    """``mandatory`` ops run in any case; those of ``joins`` may share a kernel with others."""

    instance: Instance
    index: Topology
    mandatory: int
    joins: int

    def edges(self, positions: Iterable[int]) -> Iterator[tuple[Edge, bool]]:
        """Edges by position, each with whether no kernel ever holds both of its ends."""
        for edge in (self.instance.edges[position] for position in positions):
            yield edge, not (edge.schemes and self.joins >> edge.src & self.joins >> edge.dst & 1)


def _longest_chain(facts: _Facts, *, recompute: bool) -> int:
    """The longest chain of kernels of ``joins`` ops in which each depends on the one before.

    With recomputation, only an edge that carries a buffer orders two kernels.
    """
    before = [0] * len(facts.instance.ops)
    most = 0
    for op in bits(facts.mandatory):
        for edge, apart in facts.edges(facts.index.ins[op]):
            if facts.mandatory >> edge.src & 1:
                parted = apart and not (recompute and edge.buffer is None)
                own = facts.joins >> edge.src & 1 if parted else 0
                before[op] = max(before[op], before[edge.src] + own)
        most = max(most, before[op] + (facts.joins >> op & 1))
    return most


def _crossing(facts: _Facts) -> int:
    """The least memory time of the ops that may share kernels, however they are partitioned."""
    index = facts.index
    reads: dict[int, int] = {}
    total = 0
    for op in bits(facts.mandatory & facts.joins):
        inside = {edge.buffer for edge, apart in facts.edges(index.ins[op]) if not apart}
        every = [{read[0] for read in priced.reads} for priced in index.priced[op].values()]
        for buffer in set[int].intersection(*every) - inside:
            reads[buffer] = max(reads.get(buffer, 0), _least_read(index, op, buffer))
        gone = {edge.buffer for edge, apart in facts.edges(index.outs[op]) if apart and facts.mandatory >> edge.dst & 1}
        total += min(
            sum(price // MIB for buffer, price, _, always in priced.writes if always or buffer in gone)
            for priced in index.priced[op].values()
        )
    return total + sum(reads.values())


def _least_read(index: Topology, op: int, buffer: int) -> int:
    """The least that an op pays to read a buffer, over its schemes."""
    return min(
        min(price // MIB for target, _, price, _, _ in priced.reads if target == buffer)
        for priced in index.priced[op].values()
    )
