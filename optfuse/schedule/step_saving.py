"""What a training step saves, as data: the proposals that were priced, the one that was taken, and a bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from optfuse.compiler.frontend.aot_autograd.joint import Choice
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.control.progress import relative_gap


@dataclass(frozen=True, slots=True)
class SavedValue:
    """A value kept in memory for the backward graph: its node's name, the path of its module, and its bytes."""

    name: str
    module: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """One choice of what to save, with both graphs solved.

    Attributes:
        name: "fewest bytes" is torch's minimum cut; others say the bytes that they were to keep.
        objective: Picoseconds of both graphs under the model.
        saved_bytes: What the forward graph computes and hands to the backward graph.
        peak_bytes: The most that is in memory at once: parameters, inputs, results, gradients, saved and temporary
            values, the workspaces of the device's matrix library, and an optimizer's state as
            ``SolveOptions.optimizer_states`` says. A result in the place of another value takes no memory.
        saved: The values that are kept, in program order.
        shared_ps: Picoseconds of the objective, in which each kernel pays for a launch, that shared launches save.
    """

    name: str
    objective: int
    saved_bytes: int
    peak_bytes: int
    saved: tuple[SavedValue, ...]
    shared_ps: int = 0

    @property
    def time_ps(self) -> int:
        """Picoseconds of both graphs, with shared launches."""
        return self.objective - self.shared_ps


@dataclass(frozen=True, slots=True)
class StepSaving:
    """What a training step saves, the proposals it was chosen from, and a bound.

    Attributes:
        chosen, proposals: The one that was taken, and all that were priced, in order.
        choice: What ``frontend.aot_autograd.joint`` splits the step by; None is torch's minimum cut.
        saved: Names of the graph's nodes whose values are kept in memory for the backward graph.
        bound: No choice of what to save, fused in any way, takes fewer picoseconds within the cap. Where the model
            checkpoints regions: of what they leave open.
        cap_bytes: The cap on peak memory; None without one.
        unseen_bytes: By graph ("forward", "backward"), what is in memory while it runs and is none of its buffers.
        workspace_bytes: Of these, what libraries keep for themselves on the device.
        apart_bytes: By graph, the peak of its chosen schedule if no result took the place of another value.
    """

    chosen: Proposal
    proposals: tuple[Proposal, ...]
    choice: Choice | None
    saved: tuple[str, ...]
    bound: int
    cap_bytes: int | None
    unseen_bytes: Mapping[str, int]
    workspace_bytes: int
    apart_bytes: Mapping[str, int]

    def options_of(self, options: SolveOptions, half: str) -> SolveOptions:
        """The options for one of the two graphs: what the cap leaves for its own buffers.

        The solver counts a result in the place of another value beside it. So at least what the chosen schedule needs
        when counted so is allowed.
        """
        if self.cap_bytes is None:
            return options
        return replace(options, peak_memory=max(1, self.cap_bytes - self.unseen_bytes[half], self.apart_bytes[half]))

    @property
    def gap(self) -> float:
        """(objective - bound) / objective."""
        return relative_gap(self.chosen.objective, self.bound)
