"""What a training step saves for its backward graph: proposals, priced by solving both graphs.

The first proposal is torch's, the fewest bytes by a minimum cut. Without a cap on peak memory the others are choices of
the constraint model of ``solver.saving.choice``. Under a cap they are choices of ``solver.saving.descent``, whose
memory is that of each level of both graphs, until a step keeps the cap. What is compared is the cost of schedules.

``schedule.saving_bound`` has a bound that holds for every choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from optfuse.compiler.frontend.aot_autograd.joint import Choice, JointStep
from optfuse.errors import InfeasibleError, InvalidOptionError
from optfuse.problem.cost import MIB
from optfuse.schedule.proposals import Priced, price
from optfuse.schedule.solve_once import Solved
from optfuse.schedule.step_saving import Proposal, StepSaving
from optfuse.schedule.step_search import CLOSE, StepSearch
from optfuse.solver.control.options import SolveOptions

#: What decides what a training step saves. "fewest": torch's minimum cut of bytes. "search": ``SavingSearch``. "auto":
#: the search where there is a cap on peak memory.
SavingMode = Literal["auto", "fewest", "search"]


def saving_search(mode: str, device: str, options: SolveOptions) -> SavingSearch | None:
    """A search for one training step, where the mode asks for one.

    Raises:
        InvalidOptionError: If there is no such mode.
    """
    if mode not in get_args(SavingMode):
        raise InvalidOptionError(f"saving must be one of {', '.join(get_args(SavingMode))}, not {mode!r}")
    wanted = mode == "search" or (mode == "auto" and options.peak_memory is not None)
    return SavingSearch(device, options) if wanted else None


@dataclass(slots=True)
class SavingSearch:
    """Chooses what a training step saves; after the call ``found`` tells what and why, ``solved`` has its schedules."""

    device: str
    options: SolveOptions
    found: StepSaving | None = None
    solved: Solved = field(default_factory=Solved)

    def __call__(self, step: JointStep) -> Choice | None:
        """The choice with the cheapest schedules within the cap; None is torch's own.

        Raises:
            InfeasibleError: If no proposal keeps the cap; the message names the least peak that was found.
        """
        if step.free is not None:
            return self._obey(step)
        cap = self.options.peak_bytes
        search = StepSearch(step, self.device, self.options)
        fewest = search.fewest.proposal
        free = search.by_bytes(None)
        differs = free is None or free.bytes > (1 + CLOSE) * fewest.saved_bytes
        if differs and (cap is None or fewest.peak_bytes <= cap):
            search.by_bytes(fewest.saved_bytes)
        if cap is not None and all(one.proposal.peak_bytes > cap for one in search.priced):
            search.by_lifetimes(cap)
            if all(one.proposal.peak_bytes > cap for one in search.priced):
                search.shrink(cap)
                search.lowest(cap)
        fitting = [one for one in search.priced if cap is None or one.proposal.peak_bytes <= cap]
        if cap is not None and not fitting:
            raise InfeasibleError(_infeasible(search, cap))
        best = min(fitting, key=lambda one: (one.proposal.time_ps, one.proposal.peak_bytes))
        self._take(best, search.priced, search.bound.within(cap))
        return best.choice

    def _take(self, best: Priced, priced: Sequence[Priced], bound: int) -> None:
        self.solved = Solved.of(best.solved)
        self.found = StepSaving(
            best.proposal,
            tuple(one.proposal for one in priced),
            best.choice,
            best.saved,
            min(bound, best.proposal.objective),
            self.options.peak_bytes,
            best.unseen,
            best.workspaces,
            {half: one.solution.peak_bytes for half, (_, one) in zip(best.unseen, best.solved, strict=True)},
        )

    def _obey(self, step: JointStep) -> None:
        """Price a step that saves what the user's checkpoints say, and compare its peak with the cap."""
        cap = self.options.peak_bytes
        own = price("as the model says", None, step.halves(None), self.device, self.options)
        if cap is not None and own.proposal.peak_bytes > cap:
            raise InfeasibleError(
                f"{step.name}: with the regions that the model checkpoints its peak is "
                f"{own.proposal.peak_bytes / MIB:,.1f} MiB, above peak_memory of {cap / MIB:,.1f} MiB: raise the cap, "
                f"or checkpoint nothing, so that optfuse chooses"
            )
        self._take(own, [own], sum(found.bound for _, found in own.solved))

    def sweep(self, step: JointStep, points: int) -> list[tuple[Proposal, int]]:
        """Torch's proposal and others, from the cheapest to that of the least peak, none dominated, each with a bound.

        A bound holds for every step whose peak is not above the proposal's. None where the user says what is saved.
        """
        if step.free is not None:
            return []
        search = StepSearch(step, self.device, self.options)
        search.front(points)
        first, *others = [one.proposal for one in search.priced]
        proposals = [first, *(one for one in others if not any(_dominates(other, one) for other in others))]
        return [(one, min(one.objective, search.bound.within(one.peak_bytes))) for one in proposals]


def _dominates(one: Proposal, other: Proposal) -> bool:
    """Whether one has less memory than the other, and is no slower."""
    return one.peak_bytes < other.peak_bytes and one.objective <= other.objective


def _infeasible(search: StepSearch, cap: int) -> str:
    least = min(one.proposal.peak_bytes for one in search.priced)
    held = search.fewest.held
    floor = held + max(search.least_saved(), search.fewest.trained)
    return (
        f"{search.step.name}: no training step was found within peak_memory of {cap / MIB:,.1f} MiB; the least peak "
        f"that was found is {least / MIB:,.1f} MiB, and none is below {floor / MIB:,.1f} MiB "
        f"({held / MIB:,.1f} MiB for parameters, inputs, results and what libraries and an optimizer keep): "
        "raise the cap, or make the batch smaller"
    )
