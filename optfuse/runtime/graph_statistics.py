"""Counts of how a program's calls were served by CUDA graphs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class GraphStatistics:
    """How calls were served, inputs that the last recording copies, and why a call was last served without a graph.

    ``graphs``: those that one call launches; more than one where the steps in ``cuts`` run between them, with reasons.
    """

    replays: int = 0
    plain: int = 0
    recordings: int = 0
    copied: tuple[str, ...] = ()
    graphs: int = 0
    cuts: tuple[str, ...] = ()
    reason: str = ""
