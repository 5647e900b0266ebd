"""The data of the checker: a solution with its instance, indexed, and the violations that it reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from optfuse.problem.instance import Edge, Instance, Offer
from optfuse.problem.solution import Solution

Code = Literal[
    "another_instance",
    "dangling",
    "coverage",
    "variant",
    "recompute",
    "scheme",
    "edge",
    "convexity",
    "connectivity",
    "device",
    "limit",
    "rule",
    "order",
    "writes",
    "objective",
    "peak",
    "peak_cap",
    "placement",
    "alignment",
    "overlap",
    "arena",
    "launch",
    "saving",
]


@dataclass(frozen=True, slots=True)
class Violation:
    """One condition that a solution breaks; the message names the ops or buffers."""

    code: Code
    message: str


@dataclass(frozen=True, slots=True)
class Case:
    """A solution with its instance.

    ``runs[op]`` are the positions of the kernels that hold the op; ops that do not run are absent. ``offers[kernel]``
    are the offers of its ops in its scheme. ``into[op]`` are the edges from ops that run, ``out[op]`` those to them.
    ``taken[kernel]`` are the buffers that it loads: read by an op and not produced for that op inside. ``step[kernel]``
    is the number of its launch, in order.
    """

    instance: Instance
    solution: Solution
    runs: dict[int, list[int]]
    offers: tuple[dict[int, Offer], ...]
    into: dict[int, list[Edge]]
    out: dict[int, list[Edge]]
    taken: tuple[set[int], ...]
    step: tuple[int, ...]

    def names(self, ops: Iterable[int]) -> str:
        """The ops' names, in order."""
        return ", ".join(self.instance.ops[op].name for op in sorted(ops))

    def label(self, position: int) -> str:
        """A kernel's position and ops."""
        return f"kernel {position} ({self.names(self.solution.kernels[position].ops)})"
