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
    """Kernels in execution order. ``instance_digest`` ties the solution to the one instance that it answers.

    ``launches``: positions of kernels that follow each other and run in one launch, at least two each; a kernel that is
    in none has a launch of its own. ``saved_ps`` is what they save of the ``objective``, in which each pays for one.
    """

    instance_name: str
    instance_digest: str
    kernels: tuple[Kernel, ...]
    placements: tuple[Placement, ...] = ()
    arena_bytes: int = 0
    objective: int = 0
    peak_bytes: int = 0
    launches: tuple[tuple[int, ...], ...] = ()
    saved_ps: int = 0
