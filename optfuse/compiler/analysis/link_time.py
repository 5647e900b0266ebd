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
    rounds = 2 if "all_reduce" in call.target else 1
    steps = rounds * (call.ranks - 1)
    sent = whole * steps // call.ranks
    return device.link_start_ps + steps * device.link_hop_ps + sent * device.link_ps_per_mib // MIB
