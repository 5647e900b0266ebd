"""The search over what one training step saves: proposals that are made, priced, and kept."""

from __future__ import annotations

from collections.abc import Sequence

from optfuse.compiler.frontend.aot_autograd.joint import Choice, JointStep
from optfuse.compiler.stages import fusion_problem
from optfuse.problem.cost import MIB
from optfuse.problem.device_files import load_device
from optfuse.schedule.proposals import Priced, price
from optfuse.schedule.saving_bound import StepBound
from optfuse.schedule.saving_moments import moments
from optfuse.schedule.saving_problem import saving_problem
from optfuse.schedule.step_memory import choice_of, memory_beside
from optfuse.solver.control.clock import Clock
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.saving.choice import ForwardValue, Saving, choose_saving, least_bytes
from optfuse.solver.saving.descent import descend

#: Seconds for one solve of the constraint model.
MODEL_S = 2.0
#: Choices that one descent judges at least, and all their stored values together: a microsecond each.
MIN_JUDGED, JUDGED_VALUES = 2_000, 1_500_000
#: A choice of the constraint model is good enough when what it costs is above its bound by no more than this share of
#: the step's time: solving both graphs prices it anew.
GAP = 0.002
#: Proposals that are priced at most by descent under one cap, and then by bytes where none keeps it.
MOST_DESCENTS = 4
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
        values, seconds = self.problem.values, self._seconds(MODEL_S)
        looked_at = moments(step, halves[1], problems[1], values, self.problem.calls) if not options.recompute else ()
        held = self.fewest.held
        self.bound = StepBound(step, halves[0], values, looked_at, held, device, options, self.clock, seconds)

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
        """Price choices that are within the cap at each level by what is known of the memory of both graphs.

        Each that is priced tells more of that, until one comes close to the cap, or two in turn lower no peak. Of one
        that keeps the cap the bytes are known that may be saved: the constraint model, which knows more of the time and
        nothing of the peak, is asked for its choice of no more.
        """
        latest, least, failures = self.priced[-1], min(one.proposal.peak_bytes for one in self.priced), 0
        for _ in range(MOST_DESCENTS):
            found = self.descent(latest, cap)
            if found is None or cap - CLOSE * cap <= found.proposal.peak_bytes <= cap:
                break
            failures = 0 if found.proposal.peak_bytes < max(least, cap) else failures + 1
            if failures == 2:
                break
            latest, least = found, min(least, found.proposal.peak_bytes)
        fitting = [one.proposal for one in self.priced if one.proposal.peak_bytes <= cap]
        if fitting:
            self.by_bytes(min(fitting, key=lambda one: one.time_ps).saved_bytes)

    def shrink(self, cap: int) -> None:
        """Price choices of the constraint model that save ever less, until a step keeps the cap.

        The peak falls by about a byte for each that is not saved, until what is computed again counts.
        """
        start = min((one.proposal for one in self.priced), key=lambda proposal: proposal.peak_bytes)
        fewest, limit = self.least_saved(), start.saved_bytes - (start.peak_bytes - cap)
        for _ in range(MOST_DESCENTS):
            limit, count = min(start.saved_bytes, max(fewest, limit)), len(self.priced)
            if self.by_bytes(limit) is None or len(self.priced) == count:
                break
            limit += cap - self.priced[-1].proposal.peak_bytes
            if self.priced[-1].proposal.peak_bytes <= cap:
                break

    def descent(self, known: Priced, cap: int | None) -> Priced | None:
        """The proposal of a descent from a priced one; None if it is known already.

        ``cap``: None for the least peak.
        """
        problem, values = self.problem.lifetimes, self.problem.values
        beside = memory_beside(known.memory, self.problem, known.kept)
        starts = [
            frozenset(k for k, stored in enumerate(problem.stored) if values[stored.value].name in one.kept)
            for one in {id(one): one for one in (self.fewest, known)}.values()
        ]
        most = max(MIN_JUDGED, JUDGED_VALUES // max(1, len(problem.stored)))
        limit = max(beside, default=0) if cap is None else cap
        found = descend(problem, beside, limit, starts, self.clock, most, self.options.seed)
        said = "least peak" if cap is None else f"within {cap / MIB:,.1f} MiB at each level"
        return self._price(said, choice_of(self.problem, found.saved))

    def lowest(self, cap: int = 0) -> int:
        """Price choices of ever lower peaks until none is lower, or keeps the cap; returns the least peak of all.

        Fewer saved bytes lower the peak until what is computed again raises it. So the constraint model is asked for
        choices between the one of the least peak and those that save the next more and the next fewer bytes.
        """
        for _ in range(MOST_DESCENTS):
            least = self._least_peak()
            found = self.descent(self.priced[-1], None)
            if found is None or found.proposal.peak_bytes >= least:
                break
        asked: list[int] = []
        while len(asked) < MOST_DESCENTS and self._least_peak() > cap and (limit := self._between(asked)) is not None:
            asked.append(limit)
            self.by_bytes(limit)
        return self._least_peak()

    def _least_peak(self) -> int:
        return min(one.proposal.peak_bytes for one in self.priced)

    def _between(self, asked: Sequence[int]) -> int | None:
        """The middle of the wider gap in saved bytes beside the proposal of the least peak; None where it is narrow.

        ``asked``: limits that the constraint model was asked for: its choice is known, or it found none in time.
        """
        best = min((one.proposal for one in self.priced), key=lambda one: one.peak_bytes)
        known = {one.proposal.saved_bytes for one in self.priced} | {self.least_saved(), *asked}
        below = max((size for size in known if size < best.saved_bytes), default=best.saved_bytes)
        above = min((size for size in known if size > best.saved_bytes), default=best.saved_bytes)
        wider = max(best.saved_bytes - below, above - best.saved_bytes)
        if wider <= CLOSE * best.peak_bytes:
            return None
        return (best.saved_bytes + (below if wider == best.saved_bytes - below else above)) // 2

    def front(self, points: int) -> None:
        """Price choices from the cheapest one to that of the least peak: ``points`` of peaks that are evenly spread."""
        self.by_bytes(None)
        known = start = self.priced[-1]
        least, most = self.lowest(), start.proposal.peak_bytes
        for k in range(1, points - 1):
            known = self.descent(known, most - k * (most - least) // (points - 1)) or known

    def _price(self, name: str, choice: Choice) -> Priced | None:
        """Price a choice and add it; None if it is there already."""
        if any(one.choice is not None and one.choice.saved == choice.saved for one in self.priced):
            return None
        self.priced.append(price(name, choice, self.step.halves(choice), self.device, self.options))
        return self.priced[-1]

    def _is_far_above(self, found: Saving) -> bool:
        """Whether a choice's peak is far above the cap, estimated from torch's choice and the bytes saved beyond it."""
        fewest, cap = self.fewest.proposal, self.options.peak_bytes
        return cap is not None and fewest.peak_bytes + found.bytes - fewest.saved_bytes > (1 + CLOSE) * cap

    def _seconds(self, most: float) -> float:
        return min(most, self.options.time_limit)


def _choice(values: Sequence[ForwardValue], found: Saving) -> Choice:
    names = [value.name for value in values]
    return Choice(frozenset(names[k] for k in found.saved), frozenset(names[k] for k in found.again))
