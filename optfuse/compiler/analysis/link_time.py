"""The time that a collective takes on the links between the ranks of its group.

Ring algorithms, as NCCL runs them: an all-reduce among n ranks has 2 (n - 1) steps, in each of which a rank sends an
n-th of the data; gathering, scattering and exchanging have n - 1 of them.

A group that spans h hosts with r ranks on each does the same inside of each host, with an r-th of the data a step, and
between the hosts, where each of a host's ranks has an r-th of the data for itself and sends an h-th of that in a step.
An all-reduce between hosts runs up and down a tree: it sends as much, in 2 log2(h) steps.
"""

from __future__ import annotations

from collections.abc import Mapping

from optfuse.compiler.analysis.op_work import buffer_bytes
from optfuse.compiler.ir.nodes import Buffer, LibraryCall, views
from optfuse.problem.cost import MIB
from optfuse.problem.instance import Device


def transfer_ps(call: LibraryCall, buffers: Mapping[str, Buffer], device: Device) -> int:
    """Picoseconds from the begin of a collective to its end; 0 for one whose group is not known, or has one rank."""
    if call.ranks < 2:
        return 0
    given = sum(buffer_bytes(buffers[name]) for name in {view.buffer for view in views(call)})
    made = sum(buffer_bytes(buffers[name]) for name in call.outputs if name is not None)
    whole = max(given, made)  # gathered, or to be scattered
    return collective_ps(call.target, call.ranks, whole, device)


def collective_ps(collective: str, ranks: int, whole: int, device: Device) -> int:
    """Picoseconds of a collective among two ranks or more, by its name, which handles ``whole`` bytes in all."""
    inside = min(ranks, device.host_ranks) or ranks
    hosts = -(-ranks // inside)
    times = 2 if "all_reduce" in collective else 1
    steps = times * (inside - 1)
    between, hops = times * (hosts - 1), hosts - 1
    if times == 2:
        hops = 2 * (hosts - 1).bit_length()
    if "all_to_all" in collective:  # each part goes straight to its rank, most of them to other hosts
        sent, sent_between = whole * (inside - 1) // ranks, whole * (ranks - inside) // ranks
    else:
        sent, sent_between = whole * steps // inside, whole // inside * between // hosts
    taken = device.link_start_ps + steps * device.link_hop_ps + sent * device.link_ps_per_mib // MIB
    if hosts > 1:
        taken += device.host_link_start_ps + hops * device.host_link_hop_ps
        taken += sent_between * device.host_link_ps_per_mib // MIB
    return taken
