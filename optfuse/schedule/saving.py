"""What a training step saves for its backward graph: proposals of ``solver.saving``, priced by solving both graphs.

The first proposal is torch's, the fewest bytes by a minimum cut. The others are choices of the constraint model:
without a cap, and within a number of bytes that falls until the step keeps the cap on peak memory. Both graphs that
follow from a proposal are stated and solved as any graph is, so what is compared is the cost of schedules.

``schedule.saving_bound`` has a bound that holds for every choice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from torch.fx import Node

from optfuse.compiler.extract.extraction import Extraction
from optfuse.compiler.frontend.captured import Captured
from optfuse.compiler.frontend.joint import Choice, JointStep, joint_names
from optfuse.compiler.frontend.kept_values import held_memory
from optfuse.compiler.lower.origin import origin_of
from optfuse.compiler.simplify.inline_cheap import LEAST_BYTES
from optfuse.compiler.stages import fusion_problem
from optfuse.errors import InfeasibleError, InvalidOptionError
from optfuse.problem.cost import MIB, kernel_price
from optfuse.problem.device_files import load_device
from optfuse.problem.instance import Device, Instance
from optfuse.problem.solution import Solution
from optfuse.schedule.saving_bound import StepBound
from optfuse.schedule.solve_once import Solved
from optfuse.schedule.step_saving import Proposal, SavedValue, StepSaving
from optfuse.solver.control.clock import Clock
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.result import SolveResult
from optfuse.solver.saving import ForwardValue, Saving, choose_saving, least_bytes
from optfuse.solver.solve import solve

#: Seconds for one solve of the constraint model, and for one of a graph of a proposal.
MODEL_S, GRAPH_S = 2.0, 8.0
#: A choice of the constraint model is good enough when what it costs is above its bound by no more than this share of
#: the step's time: solving both graphs prices it anew.
GAP = 0.002
#: Proposals that are priced at most, torch's included.
MOST_PROPOSALS = 8
#: The search ends at a step whose peak is below the cap by no more than this share of it; choices whose bytes differ by
#: no more are alike.
CLOSE = 0.02
#: A schedule whose peak is above the cap by no more than this share of it is solved again under the cap.
NEAR = 0.03


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


@dataclass(frozen=True, slots=True)
class _Priced:
    """A proposal, and what follows from it.

    ``held`` are the bytes that are in memory at any time, ``trained`` those of the gradients of parameters.
    """

    proposal: Proposal
    choice: Choice | None
    saved: tuple[str, ...]
    unseen: Mapping[str, int]
    workspaces: int
    held: int
    trained: int
    solved: Sequence[tuple[Instance, SolveResult]]


@dataclass(slots=True)
class SavingSearch:
    """Chooses what a training step saves; after the call ``found`` tells what and why, ``solved`` has its schedules."""

    device: str
    options: SolveOptions
    found: StepSaving | None = None
    solved: Solved = field(default_factory=Solved)
    _priced: list[_Priced] = field(default_factory=list, init=False)

    def __call__(self, step: JointStep) -> Choice | None:
        """The choice with the cheapest schedules within the cap; None is torch's own.

        Raises:
            InfeasibleError: If no proposal keeps the cap; the message names the least peak that was found.
        """
        if step.free is not None:
            return self._obey(step)
        values, forward, clock = self._start(step)
        cap = self.options.peak_bytes
        fewest = self._priced[0].proposal
        free = self._propose(step, values, None, clock)
        differs = free is None or free.bytes > (1 + CLOSE) * fewest.saved_bytes
        if differs and (cap is None or fewest.peak_bytes <= cap):
            self._propose(step, values, fewest.saved_bytes, clock)
        if cap is not None and all(one.proposal.peak_bytes > cap for one in self._priced):
            self._shrink(step, values, cap, clock)
        fitting = [one for one in self._priced if cap is None or one.proposal.peak_bytes <= cap]
        if cap is not None and not fitting:
            least = min(one.proposal.peak_bytes for one in self._priced)
            saved = least_bytes(values, self.options, clock, clock.now() + MODEL_S) or 0
            held = self._priced[0].held
            floor = held + max(saved, self._priced[0].trained)
            raise InfeasibleError(
                f"{step.name}: no training step was found within peak_memory of {cap / MIB:,.1f} MiB; the least peak "
                f"that was found is {least / MIB:,.1f} MiB, and none is below {floor / MIB:,.1f} MiB "
                f"({held / MIB:,.1f} MiB for parameters, inputs, results and what libraries and an optimizer keep): "
                "raise the cap, or make the batch smaller"
            )
        best = min(fitting, key=lambda one: (one.proposal.objective, one.proposal.peak_bytes))
        self._take(best, self._bound(step, forward, values, clock).within(cap))
        return best.choice

    def _take(self, best: _Priced, bound: int) -> None:
        self.solved = Solved.of(best.solved)
        self.found = StepSaving(
            best.proposal,
            tuple(one.proposal for one in self._priced),
            best.choice,
            best.saved,
            min(bound, best.proposal.objective),
            self.options.peak_bytes,
            best.unseen,
            best.workspaces,
        )

    def _obey(self, step: JointStep) -> None:
        """Price a step that saves what the user says, and hold it against the cap."""
        cap = self.options.peak_bytes
        own = self._price(step, "as the model says", None)
        if cap is not None and own.proposal.peak_bytes > cap:
            raise InfeasibleError(
                f"{step.name}: with the regions that the model checkpoints its peak is "
                f"{own.proposal.peak_bytes / MIB:,.1f} MiB, above peak_memory of {cap / MIB:,.1f} MiB: raise the cap, "
                f"or checkpoint nothing, so that optfuse chooses"
            )
        self._take(own, sum(found.bound for _, found in own.solved))

    def sweep(self, step: JointStep, points: int) -> list[tuple[Proposal, int]]:
        """Torch's proposal and ``points`` of the constraint model, ever fewer bytes, each with a bound.

        A bound holds for every step whose peak is not above the proposal's. None where the user says what is saved.
        """
        if step.free is not None:
            return []
        values, forward, clock = self._start(step)
        free = self._propose(step, values, None, clock)
        fewest = least_bytes(values, self.options, clock, clock.now() + MODEL_S) or 0
        most = self._priced[0].proposal.saved_bytes if free is None else free.bytes
        for k in range(1, points):
            self._propose(step, values, most - k * (most - fewest) // points, clock)
        bound = self._bound(step, forward, values, clock)
        proposals = [one.proposal for one in self._priced]
        return [(one, min(one.objective, bound.within(one.peak_bytes))) for one in proposals]

    def _bound(self, step: JointStep, forward: Captured, values: Sequence[ForwardValue], clock: Clock) -> StepBound:
        seconds = min(MODEL_S, self.options.time_limit)
        return StepBound(step, forward, values, self.device, self.options, clock, seconds)

    def _start(self, step: JointStep) -> tuple[tuple[ForwardValue, ...], Captured, Clock]:
        """The constraint model's data, and the forward graph of torch's proposal, which is priced."""
        halves = step.halves(None)
        problems = tuple(fusion_problem(half, self.device) for half in halves)
        self._price(step, "fewest bytes", None, halves, problems)
        clock = Clock(interruptible=self.options.interruptible)
        return saving_problem(step, halves, problems, load_device(self.device)), halves[0], clock

    def _price(
        self,
        step: JointStep,
        name: str,
        choice: Choice | None,
        halves: tuple[Captured, Captured] | None = None,
        problems: tuple[Extraction, ...] | None = None,
    ) -> _Priced:
        """Solve both graphs of a choice."""
        halves = step.halves(choice) if halves is None else halves
        problems = problems or tuple(fusion_problem(half, self.device) for half in halves)
        solved = [(problem.instance, self._solve(problem.instance)) for problem in problems]
        workspaces = workspace_bytes([problem.instance for problem in problems])
        trained = trained_bytes(*halves)
        beside = workspaces + self.options.optimizer_states * trained
        unseen = {half: out + beside for half, out in unseen_bytes(*halves).items()}
        solved = [self._fitted(*pair, out) for pair, out in zip(solved, unseen.values(), strict=True)]
        proposal = proposal_of(name, halves, [(one.objective, one.solution) for _, one in solved], unseen)
        saved = tuple(one.name for one in proposal.saved)
        held = beside + sum(one.bytes for one in held_memory(halves[0]))
        self._priced.append(_Priced(proposal, choice, saved, unseen, workspaces, held, trained, solved))
        return self._priced[-1]

    def _solve(self, instance: Instance, cap: int | None = None) -> SolveResult:
        seconds = min(GRAPH_S, self.options.time_limit)
        return solve(instance, replace(self.options, rules=(), peak_memory=cap, time_limit=seconds))

    def _fitted(self, instance: Instance, found: SolveResult, beside: int) -> tuple[Instance, SolveResult]:
        """A graph's schedule; one that is a little above the cap is solved again under it."""
        cap = self.options.peak_bytes
        if cap is not None and 0 < cap - beside < found.solution.peak_bytes <= (1 + NEAR) * cap - beside:
            with suppress(InfeasibleError):
                return instance, self._solve(instance, cap - beside)
        return instance, found

    def _propose(
        self, step: JointStep, values: Sequence[ForwardValue], limit: int | None, clock: Clock
    ) -> Saving | None:
        """Price the cheapest choice of the constraint model that saves at most ``limit`` bytes; None: there is none."""
        seconds = min(MODEL_S, self.options.time_limit)
        gap_ps = int(GAP * self._priced[0].proposal.objective)
        found = choose_saving(values, limit, self.options, clock, clock.now() + seconds, gap_ps)
        if found is not None and not (limit is None and self._is_far_above(found)):
            choice = _choice(values, found)
            if all(one.choice is None or one.choice.saved != choice.saved for one in self._priced):
                said = "least time" if limit is None else f"at most {limit / MIB:,.1f} MiB"
                self._price(step, said, choice)
        return found

    def _is_far_above(self, found: Saving) -> bool:
        """Whether the peak is far above the cap, if it is as far above that of torch's choice as the saved bytes."""
        fewest, cap = self._priced[0].proposal, self.options.peak_bytes
        return cap is not None and fewest.peak_bytes + found.bytes - fewest.saved_bytes > (1 + CLOSE) * cap

    def _shrink(self, step: JointStep, values: Sequence[ForwardValue], cap: int, clock: Clock) -> None:
        """Propose choices that save ever less until a step keeps the cap and comes close to it.

        The peak falls by about a byte for each that is not saved, until what is computed again counts. Then it may
        rise, so that shares of the bytes are tried where no step falls below the cap.
        """
        start = min((one.proposal for one in self._priced), key=lambda proposal: proposal.peak_bytes)
        fewest = least_bytes(values, self.options, clock, clock.now() + MODEL_S) or 0
        limit, tried = start.saved_bytes - (start.peak_bytes - cap), set()
        shares = iter((0.5, 0.3, 0.15, 0.05))
        while len(self._priced) < MOST_PROPOSALS:
            limit = min(start.saved_bytes, max(fewest, limit))
            count = len(self._priced)
            known = limit in tried or self._propose(step, values, limit, clock) is None
            tried.add(limit)
            if known or len(self._priced) == count:
                share = next(shares, None)
                if share is None or any(one.proposal.peak_bytes <= cap for one in self._priced):
                    break
                limit = int(share * start.saved_bytes)
                continue
            peak = self._priced[-1].proposal.peak_bytes
            if cap - CLOSE * cap <= peak <= cap:
                break
            limit += cap - peak


def saving_problem(
    step: JointStep, halves: Sequence[Captured], problems: Sequence[Extraction], device: Device
) -> tuple[ForwardValue, ...]:
    """The constraint model's data, from the joint graph, and one way to split it with both fusion problems.

    A library call, a reduction and a loop with several results take their time alone, other loops that of what they
    read and write: they share kernels with their readers, but for small values, which are not computed by each reader
    and cost a launch. A value that a library call of the forward graph reads or makes is in memory in any case, so that
    saving it adds no write. A result of the step stays in memory, so that saving it costs no bytes; one that leaves in
    other strides than its node's is a copy, which may be saved in place of what it is a view of.
    """
    alone: Counter[str] = Counter()
    calls = set()
    reduced = set()
    for half, problem in zip(halves, problems, strict=True):
        names = joint_names(half)
        for k, (op, loop) in enumerate(zip(problem.instance.ops, problem.graph.ops, strict=True)):
            name = names.get(loop.origin.node, loop.origin.node)
            alone[name] += min(kernel_price(problem.instance, (k,), offer.scheme).total for offer in op.offers)
            if op.kind != "loop":
                calls.add(name)
            elif any(offer.reduces for offer in op.offers):
                reduced.add(name)
    levels = _levels(step, calls)
    held, copies = _results(halves[0])
    forward_calls = {value.name for value in step.values if value.in_forward and value.name in calls}
    values: list[ForwardValue] = []
    for value in step.values:
        view = value.is_view and value.name not in copies
        size = 0 if view or value.bytes is None else value.bytes
        moved = size * device.dram_ps_per_mib // MIB
        part = value.is_part and step.values[value.inputs[0]].name in calls  # of what a library call returns
        in_memory = part or value.name in forward_calls or not forward_calls.isdisjoint(value.readers)
        called = [levels[name] for name in value.backward_readers if name in calls]
        called += [max(levels.values(), default=0)] if value.is_result else []
        again = 0
        if value.name in calls | reduced or (value.bytes is None and not view):
            again = alone[value.name]
        elif value.inputs and 0 < size < LEAST_BYTES:
            again = device.launch_ps
        values.append(
            ForwardValue(
                value.name,
                value.inputs,
                None if view or value.bytes is None else 0 if value.name in held | copies else size,
                save_ps=0 if in_memory or value.name in held | copies else moved,
                again_ps=again if value.repeatable else None,
                write_ps=moved,
                read_ps=moved,
                library=part or value.name in calls,
                view=view,
                called=min(called, default=None),
                looped=frozenset(levels[name] for name in value.backward_readers if name not in calls),
            )
        )
    return tuple(values)


def _results(forward: Captured) -> tuple[set[str], set[str]]:
    """The names of the joint graph's nodes whose memory holds the step's results, and of results that are copies."""
    names = joint_names(forward)
    held = {names.get(memory.name, memory.name) for memory in held_memory(forward)}
    copied = (forward.outputs[k] for k in forward.visible or () if k in forward.strides)
    return held, {names[node.name] for node in copied if isinstance(node, Node)}


def _levels(step: JointStep, calls: Collection[str]) -> dict[str, int]:
    """By node of the backward half: the number of library calls on a longest path to it."""
    levels: dict[str, int] = {}
    for name, sources in step.backward.items():
        levels[name] = max((levels[source] + (source in calls) for source in sources), default=0)
    return levels


def _choice(values: Sequence[ForwardValue], found: Saving) -> Choice:
    names = [value.name for value in values]
    return Choice(frozenset(names[k] for k in found.saved), frozenset(names[k] for k in found.again))


def proposal_of(
    name: str, halves: tuple[Captured, Captured], solved: Sequence[tuple[int, Solution]], unseen: Mapping[str, int]
) -> Proposal:
    """A step's proposal, of both graphs with their objectives and solutions.

    ``unseen``: by graph, the bytes that are in memory while it runs and are none of its buffers.
    """
    peak = max(solution.peak_bytes + out for (_, solution), out in zip(solved, unseen.values(), strict=True))
    saved = _saved_values(*halves)
    return Proposal(name, sum(objective for objective, _ in solved), sum(one.bytes for one in saved), peak, saved)


def _saved_values(forward: Captured, backward: Captured) -> tuple[SavedValue, ...]:
    """What the forward graph computes and keeps, in its order."""
    kept = {one.name: one.bytes for one in backward.memory.values() if not one.held}
    modules = {node.name: origin_of(node).module for node in forward.graph.graph.nodes}
    ordered = [name for name in modules if name in kept] + [name for name in kept if name not in modules]
    return tuple(SavedValue(name, modules.get(name.removesuffix("_copy"), ""), kept[name]) for name in ordered)


def workspace_bytes(halves: Sequence[Instance]) -> int:
    """What libraries keep in memory beside a step's buffers: each graph is run by a thread of its own."""
    calling = [half for half in halves if any(op.kind != "loop" for op in half.ops)]
    return sum(half.devices[0].workspace_bytes for half in calling)


def unseen_bytes(forward: Captured, backward: Captured) -> dict[str, int]:
    """What is in memory while each graph runs and is none of its buffers.

    While the backward graph runs, that is what the step was given and does not read again, and its results.
    """
    read = {one.name for one in backward.memory.values()}
    return {"forward": 0, "backward": sum(one.bytes for one in held_memory(forward) if one.name not in read)}


def trained_bytes(forward: Captured, backward: Captured) -> int:
    """The bytes of the parameters that get a gradient: a backward graph returns one for each input, or None."""
    pairs = zip(forward.inputs, forward.placeholders, backward.outputs, strict=False)
    trained = {
        node.name for source, node, gradient in pairs if source.kind == "parameter" and isinstance(gradient, Node)
    }
    return sum(one.bytes for one in held_memory(forward) if one.name in trained)
