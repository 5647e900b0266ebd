"""What the checker looks at: a solution beside its instance, and the violations it may find."""

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
]


@dataclass(frozen=True, slots=True)
class Violation:
    """One condition that a solution breaks; the message names the ops or buffers."""

    code: Code
    message: str


@dataclass(frozen=True, slots=True)
class Case:
    """A solution beside its instance.

    ``runs[op]`` are the positions of the kernels that hold the op; ops that do not run are absent. ``offers`` are, by
    kernel, what its ops read and write in its scheme. ``into[op]`` are the edges from ops that run, ``out`` likewise.
    ``taken`` are, by kernel, the buffers that it takes from memory: read by an op and not made for that op inside.
    """

    instance: Instance
    solution: Solution
    runs: dict[int, list[int]]
    offers: tuple[dict[int, Offer], ...]
    into: dict[int, list[Edge]]
    out: dict[int, list[Edge]]
    taken: tuple[set[int], ...]

    def names(self, ops: Iterable[int]) -> str:
        """The ops' names, in order."""
        return ", ".join(self.instance.ops[op].name for op in sorted(ops))

    def label(self, position: int) -> str:
        """A kernel's position and ops."""
        return f"kernel {position} ({self.names(self.solution.kernels[position].ops)})"
