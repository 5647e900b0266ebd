"""The search over what one training step saves: proposals that are made, priced, and kept."""

from __future__ import annotations

from collections.abc import Sequence

from optfuse.compiler.frontend.joint import Choice, JointStep
from optfuse.compiler.stages import fusion_problem
from optfuse.problem.cost import MIB
from optfuse.problem.device_files import load_device
from optfuse.schedule.proposals import Priced, price
from optfuse.schedule.saving_bound import StepBound
from optfuse.schedule.saving_problem import saving_problem
from optfuse.schedule.step_memory import choice_of, memory_beside
from optfuse.solver.control.clock import Clock
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.saving import ForwardValue, Saving, choose_saving, least_bytes
from optfuse.solver.saving_descent import descend

#: Seconds for one solve of the constraint model, and for one descent.
MODEL_S, DESCENT_S = 2.0, 2.0
#: A choice of the constraint model is good enough when what it costs is above its bound by no more than this share of
#: the step's time: solving both graphs prices it anew.
GAP = 0.002
#: Proposals that are priced at most, torch's included; of these by descent.
MOST_PROPOSALS, MOST_DESCENTS = 8, 4
#: The search ends at a step whose peak is below the cap by no more than this share of it; choices whose bytes differ by
#: no more are alike.
CLOSE = 0.02


class StepSearch:
    """Proposals for one step: ``priced`` has them all, torch's first."""

    def __init__(self, step: JointStep, device: str, options: SolveOptions) -> None:
        self.step, self.device, self.options = step, device, options
        halves = step.halves(None)
        problems = tuple(fusion_problem(half, device) for half in halves)
        self.priced = [price("fewest bytes", None, halves, device, options, problems)]
        self.clock = Clock(interruptible=options.interruptible)
        self.forward = halves[0]
        self.problem = saving_problem(step, halves, problems, load_device(device))
        seconds = self._seconds(MODEL_S)
        self.bound = StepBound(step, halves[0], self.problem.values, device, options, self.clock, seconds)

    @property
    def fewest(self) -> Priced:
        """Torch's proposal."""
        return self.priced[0]

    def least_saved(self) -> int:
        """The fewest bytes that any choice keeps, or a bound below them."""
        deadline = self.clock.now() + MODEL_S
        return least_bytes(self.problem.values, self.options, self.clock, deadline) or 0

    def by_bytes(self, limit: int | None) -> Saving | None:
        """Price the cheapest choice of the constraint model that saves at most ``limit`` bytes; None: there is none."""
        deadline = self.clock.now() + self._seconds(MODEL_S)
        gap_ps = int(GAP * self.fewest.proposal.objective)
        found = choose_saving(self.problem.values, limit, self.options, self.clock, deadline, gap_ps)
        if found is not None and not (limit is None and self._is_far_above(found)):
            said = "least time" if limit is None else f"at most {limit / MIB:,.1f} MiB"
            self._price(said, _choice(self.problem.values, found))
        return found

    def by_lifetimes(self, cap: int) -> None:
        """Price choices whose backward graph is within the cap at each level, by what is known of its memory.

        Each that is priced tells more of that, until one comes close to the cap.
        """
        latest = self.priced[-1]
        for _ in range(MOST_DESCENTS):
            known = latest
            latest = self._descent(known, cap)
            if latest is None or cap - CLOSE * cap <= latest.proposal.peak_bytes <= cap:
                break

    def _descent(self, known: Priced, cap: int) -> Priced | None:
        """The proposal of a descent from a priced one; None if it is known already."""
        problem, values = self.problem.lifetimes, self.problem.values
        beside = memory_beside(known.memory, self.problem, known.kept)
        starts = [
            frozenset(k for k, stored in enumerate(problem.stored) if values[stored.value].name in one.kept)
            for one in {id(one): one for one in (self.fewest, known)}.values()
        ]
        deadline = self.clock.now() + self._seconds(DESCENT_S)
        found = descend(problem, beside, cap, starts, self.clock, deadline, self.options.seed)
        return self._price(f"within {cap / MIB:,.1f} MiB at each level", choice_of(self.problem, found.saved))

    def shrink(self, cap: int) -> None:
        """Price choices that save ever less until a step keeps the cap and comes close to it.

        The peak falls by about a byte for each that is not saved, until what is computed again counts.
        """
        start = min((one.proposal for one in self.priced), key=lambda proposal: proposal.peak_bytes)
        fewest = self.least_saved()
        limit = start.saved_bytes - (start.peak_bytes - cap)
        tried: set[int] = set()
        while len(self.priced) < MOST_PROPOSALS and limit not in tried:
            limit = min(start.saved_bytes, max(fewest, limit))
            tried.add(limit)
            count = len(self.priced)
            if self.by_bytes(limit) is None or len(self.priced) == count:
                break
            peak = self.priced[-1].proposal.peak_bytes
            if cap - CLOSE * cap <= peak <= cap:
                break
            limit += cap - peak

    def _price(self, name: str, choice: Choice) -> Priced | None:
        """Price a choice and add it; None if it is there already."""
        if any(one.choice is not None and one.choice.saved == choice.saved for one in self.priced):
            return None
        self.priced.append(price(name, choice, self.step.halves(choice), self.device, self.options))
        return self.priced[-1]

    def _is_far_above(self, found: Saving) -> bool:
        """Whether the peak is far above the cap, if it is as far above that of torch's choice as the saved bytes."""
        fewest, cap = self.fewest.proposal, self.options.peak_bytes
        return cap is not None and fewest.peak_bytes + found.bytes - fewest.saved_bytes > (1 + CLOSE) * cap

    def _seconds(self, most: float) -> float:
        return min(most, self.options.time_limit)


def _choice(values: Sequence[ForwardValue], found: Saving) -> Choice:
    names = [value.name for value in values]
    return Choice(frozenset(names[k] for k in found.saved), frozenset(names[k] for k in found.again))
