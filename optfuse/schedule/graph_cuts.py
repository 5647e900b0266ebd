"""Which steps of a program no CUDA graph can capture: between them each run of the other steps is a graph of its own.

A step that certainly cannot be captured is known here, by its devices and its operator's tags. One that may not be (an
operator of which only its author knows whether it waits for the device) is tried when the program is recorded. The
host program calls both through ``apart``, which a recorder replaces.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from optfuse.compiler.codegen.kernel_source import KernelSource
from optfuse.compiler.codegen.uncaptured_steps import moved_numbers
from optfuse.compiler.ir.collectives import communicates
from optfuse.compiler.ir.devices import HOST, main_device
from optfuse.compiler.ir.nodes import Buffer, LibraryCall, LoopGraph, views
from optfuse.compiler.ops.opaque_operators import NAMESPACE as OPAQUE

#: A run of fewer steps is no graph: to launch a graph takes the host as long as two kernels.
SHORTEST_RUN = 3

_SYNCHRONIZING = {
    torch.Tag.cudagraph_unsafe: "is marked as unsafe for CUDA graphs",
    torch.Tag.data_dependent_output: "has a result that the host reads",
    torch.Tag.dynamic_output_shape: "has a result whose size the host reads",
}
#: Opaque nodes, by the stem of their names, in which the host waits for a value of the device.
_BRANCHES = ("cond", "while_loop")
#: Beginnings of the names of ATen's operators of which some wait for the device to report an error.
_SOLVERS = ("linalg", "_linalg", "cholesky", "lu_", "svd", "_svd", "inverse", "triangular_solve", "geqrf", "ormqr")


def cut_reason(call: LibraryCall, buffers: Mapping[str, Buffer], main: str, moved: Collection[str] = ()) -> str:
    """Why no CUDA graph can capture a library call; "" where one can, or where only a trial tells.

    ``moved`` are numbers of the host's that the program finds on the device (``moved_numbers``).
    """
    touched = {view.buffer for view in views(call)} | {name for name in (*call.outputs, *call.mutates) if name}
    touched -= set(moved)
    operator = call.target.removesuffix(".default")
    if any(buffers[name].device == HOST for name in touched):
        return f"{call.name} ({operator}) reads or writes host memory"
    if any(buffers[name].device != main for name in touched):
        return f"{call.name} ({operator}) works on another device"
    tags: Collection[Any] = getattr(_overload(call.target), "tags", ())
    found = next((text for tag, text in _SYNCHRONIZING.items() if tag in tags), "")
    if found:
        return f"{call.name} ({operator}) {found}"
    space, _, name = call.target.partition(".")
    if space == OPAQUE and name.startswith(_BRANCHES):
        return f"{call.name} ({operator}): the host waits for the value that decides how it goes on"
    return ""


def only_a_trial_tells(call: LibraryCall) -> bool:
    """Whether a library call may wait for the device without a sign of it."""
    space, _, name = call.target.partition(".")
    return (space == "aten" and name.startswith(_SOLVERS)) or space not in {"aten", "optfuse", "prims"}


def steps_apart(graph: LoopGraph, steps: Sequence[KernelSource | LibraryCall]) -> dict[int, str]:
    """By position, why a step runs outside of CUDA graphs; "" for one that is tried.

    Runs of fewer than ``SHORTEST_RUN`` steps beside a cut run outside, too. A program with collectives has no cuts: one
    in flight would begin in one graph and end in another.
    """
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    main = main_device(buffer.device for buffer in graph.buffers)
    if main == HOST or any(communicates(op) for op in graph.ops):
        return {}
    moved = moved_numbers(graph, steps)
    found: dict[int, str] = {}
    for k, step in enumerate(steps):
        if isinstance(step, LibraryCall):
            reason = cut_reason(step, buffers, main, moved)
            if reason or only_a_trial_tells(step):
                found[k] = reason
    cuts = [-1, *(k for k, reason in found.items() if reason), len(steps)]
    for before, after in pairwise(cuts):
        run = range(before + 1, after)
        if len(cuts) > 2 and len(run) < SHORTEST_RUN:
            found.update(dict.fromkeys(run, "too few steps between cuts for a graph"))
    return dict(sorted(found.items()))


def _overload(target: str) -> Any:
    found: Any = torch.ops
    for part in target.split("."):
        found = getattr(found, part, None)
    return found
