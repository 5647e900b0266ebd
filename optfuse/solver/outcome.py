"""What the CP-SAT solver hands back."""

from __future__ import annotations

from dataclasses import dataclass

from optfuse.problem.solution import Kernel


@dataclass(frozen=True, slots=True)
class CpsatOutcome:
    """A partition in a topological order, and what was proven of it.

    Attributes:
        kernels: The kernels; those of alternatives that were not taken are absent.
        objective: Their cost in picoseconds.
        bound: A lower bound on the cost of every solution of the whole instance, in picoseconds.
        proven: Whether objective and bound are equal.
        blocks: Parts solved apart.
        unique_blocks: Parts that differ from each other.
        candidates: Candidate kernels over the unique blocks.
        cuts: Constraints added against cycles of kernels and fractional relaxations, and joins of blocks on a cycle.
        rounds: Solves of the hardest block's master problem, or of the whole where blocks had to be joined.
        given_up: One line for each thing that was not proven, and why.
    """

    kernels: tuple[Kernel, ...]
    objective: int
    bound: int
    proven: bool
    blocks: int
    unique_blocks: int
    candidates: int
    cuts: int
    rounds: int
    given_up: tuple[str, ...] = ()
