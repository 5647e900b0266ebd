"""Release recorded CUDA graphs before a process group ends: NCCL waits for every graph that holds its communicator.

``torch.distributed.destroy_process_group``, however it was imported, ends each group through the methods ``shutdown``
and ``abort`` of ``ProcessGroup``, which wait in that way. They are wrapped as soon as something is recorded while there
is a process group. A process that ends without it destroys its groups when the interpreter does, so recordings are
released at exit, too.

Ranks may differ in which calls they replay if a collective sends the same from a graph as from a plain call. It does,
unless NCCL registers memory of a graph at the other ranks, which then write into it where they have their own graph:
that is turned off. And on the host no rank may wait for what others do in a plain call only.
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
import weakref
from typing import Any, Protocol

import torch

#: Methods of a process group that wait for graphs.
_ENDING = ("shutdown", "abort")
_MARK = "_releases_recordings"
#: Lets NCCL register all memory of torch's allocator.
_REGISTERS = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"


class Holder(Protocol):
    """What has recordings, and goes on without."""

    def release(self) -> None:
        """Drop all recordings."""
        ...


_holders: weakref.WeakSet[Any] = weakref.WeakSet()
_lock = threading.Lock()


def release_before_groups_end(holder: Holder) -> bool:
    """Call ``holder.release()`` before a process group ends, if there is one now. False: this torch does not let us."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return True
    with _lock:
        _holders.add(holder)
        return all([_wrap(torch.distributed.ProcessGroup, name) for name in _ENDING])


def why_ranks_may_not_differ() -> str:
    """Why one rank must not replay a collective that another one launches; "" if it may.

    NCCL asks for the setting when it first sees a collective in a capture. So this is called before.
    """
    if os.environ.setdefault("NCCL_GRAPH_REGISTER", "0").strip() != "0":
        return "NCCL_GRAPH_REGISTER is on: ranks whose inputs move at different calls would write into wrong memory"
    if os.environ.get("NCCL_GRAPH_MIXING_SUPPORT", "1").strip() == "0":
        return "NCCL_GRAPH_MIXING_SUPPORT is off: no call may run plainly any more"
    if os.environ.get(_REGISTERS, "0").strip().lower() in ("1", "y", "yes", "t", "true"):
        return f"{_REGISTERS} is on: ranks exchange what they register in plain calls, and a replay takes no part"
    distributed: Any = torch.distributed
    if distributed.is_available() and distributed.get_debug_level() == distributed.DebugLevel.DETAIL:
        return "TORCH_DISTRIBUTED_DEBUG=DETAIL compares what all ranks call, and a replay calls nothing"
    return ""


def release_all() -> None:
    """Drop the recordings of all holders."""
    with _lock:
        holders = list(_holders)
        _holders.clear()
    for holder in holders:
        holder.release()


def _wrap(owner: Any, name: str) -> bool:
    end = getattr(owner, name, None)
    if end is None or hasattr(end, _MARK):
        return True

    @functools.wraps(end)
    def release_and_end(*arguments: Any, **named: Any) -> Any:
        release_all()
        return end(*arguments, **named)

    setattr(release_and_end, _MARK, True)
    try:
        setattr(owner, name, release_and_end)
    except (AttributeError, TypeError):  # a class that takes no attributes
        return False
    return True


atexit.register(release_all)
