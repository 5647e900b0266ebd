"""What the regions that a model hands to ``torch.utils.checkpoint`` cost and save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from optfuse.compiler.extract.extraction import Extraction
from optfuse.compiler.frontend.aot_autograd.joint import JointStep
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.tracing.training import capture_step
from optfuse.compiler.stages import fusion_problem
from optfuse.problem.cost import MIB
from optfuse.problem.solution import Solution
from optfuse.schedule.proposals import proposal_of, unseen_bytes, workspace_bytes
from optfuse.schedule.scheduled import ScheduledStep
from optfuse.schedule.step_saving import Proposal
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.solve import solve


@dataclass(frozen=True, slots=True)
class CheckpointPrice:
    """A training step that obeys the model's checkpointed regions, and the same step without them.

    Attributes:
        regions: How many regions the model has.
        obeyed, free: What is saved, the predicted time and the peak memory: as the regions say, and where torch saves
            the fewest bytes that spare every expensive operation.
    """

    regions: int
    obeyed: Proposal
    free: Proposal

    @property
    def slowdown(self) -> float:
        """The share of the step's time without them that they add."""
        return self.obeyed.time_ps / self.free.time_ps - 1

    @property
    def saved_bytes(self) -> int:
        """By how much they lower the peak memory; negative where they raise it."""
        return self.free.peak_bytes - self.obeyed.peak_bytes

    def __str__(self) -> str:
        """A sentence."""
        name = "checkpointed region costs" if self.regions == 1 else f"{self.regions} checkpointed regions cost"
        saved = self.saved_bytes / MIB
        memory = f"save {saved:,.1f} MiB" if saved >= 0 else f"take {-saved:,.1f} MiB more"
        if self.regions == 1:
            memory = memory.replace("save ", "saves ").replace("take ", "takes ")
        return f"the {name} {self.slowdown:+.1%} of the step's time and {memory} of its peak memory"


def checkpoint_price(step: ScheduledStep, device: str, options: SolveOptions) -> CheckpointPrice | None:
    """Price a scheduled step's checkpointed regions: it is traced and solved again without them.

    None if the model has none, or if the step was not made by ``optimize``.
    """
    if step.capture is None or not step.capture.regions:
        return None
    solved = [(half.objective, half.solution) for half in step]
    halves = step.capture.forward, step.capture.backward
    obeyed = _proposal("checkpointed regions", halves, [half.extraction for half in step], solved)
    found: list[Proposal] = []

    def price(joint: JointStep) -> None:
        found.append(_solved("fewest bytes", joint.halves(None), device, options))

    name = step.forward.name.removesuffix(".forward")
    capture_step(step.model, step.args, step.kwargs, name=name, choose=price, obey=False)
    return CheckpointPrice(step.capture.regions, obeyed, found[0])


def price_before_split(step: JointStep, device: str, options: SolveOptions) -> CheckpointPrice | None:
    """Price the checkpointed regions of a step that is not split yet; None if it has none. Both steps are solved."""
    if not step.regions or step.free is None:
        return None
    options = replace(options, rules=(), peak_memory=None)
    obeyed = _solved("checkpointed regions", step.halves(None), device, options)
    return CheckpointPrice(step.regions, obeyed, _solved("fewest bytes", step.free(), device, options))


def _solved(name: str, halves: tuple[Captured, Captured], device: str, options: SolveOptions) -> Proposal:
    problems = [fusion_problem(half, device) for half in halves]
    results = [solve(problem.instance, options) for problem in problems]
    return _proposal(name, halves, problems, [(one.objective, one.solution) for one in results])


def _proposal(
    name: str, halves: tuple[Captured, Captured], problems: Sequence[Extraction], solved: Sequence[tuple[int, Solution]]
) -> Proposal:
    workspaces = workspace_bytes([problem.instance for problem in problems])
    unseen = {half: out + workspaces for half, out in unseen_bytes(*halves).items()}
    return proposal_of(name, halves, problems, solved, unseen)
