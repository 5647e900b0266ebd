"""An answer to an Instance: kernels in the order they run, and where their buffers live."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kernel:
    """Ops that run as one launch in one scheme. ``writes``: the buffers that it leaves in memory."""

    ops: tuple[int, ...]
    scheme: int
    writes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """A buffer's byte offset in the arena."""

    buffer: int
    offset: int


@dataclass(frozen=True, slots=True)
class Solution:
    """Kernels in execution order. ``instance_digest`` ties the solution to the one instance that it answers."""

    instance_name: str
    instance_digest: str
    kernels: tuple[Kernel, ...]
    placements: tuple[Placement, ...] = ()
    arena_bytes: int = 0
    objective: int = 0
    peak_bytes: int = 0
