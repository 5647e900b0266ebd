"""The time that a collective takes on the links between the ranks of its group.

Ring algorithms, as NCCL runs them: an all-reduce among n ranks has 2 (n - 1) steps, in each of which a rank sends an
n-th of the data; gathering, scattering and exchanging have n - 1 of them.
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
    return ring_ps(ring_steps(call.target, call.ranks), call.ranks, whole, device)


def ring_steps(collective: str, ranks: int) -> int:
    """The steps from rank to rank of a collective, by its name."""
    return (2 if "all_reduce" in collective else 1) * (ranks - 1)


def ring_ps(steps: int, ranks: int, whole: int, device: Device) -> int:
    """Picoseconds of so many steps, in each of which a rank sends its part of the ``whole`` bytes."""
    sent = whole * steps // ranks
    return device.link_start_ps + steps * device.link_hop_ps + sent * device.link_ps_per_mib // MIB
