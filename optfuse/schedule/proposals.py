"""Price a choice of what a training step saves: both graphs that follow from it are stated and solved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from torch.fx import Node

from optfuse.compiler.extract.extraction import Extraction
from optfuse.compiler.frontend.aot_autograd.joint import Choice, joint_names
from optfuse.compiler.frontend.aot_autograd.kept_values import held_memory
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.lower.origin import origin_of
from optfuse.compiler.stages import fusion_problem
from optfuse.errors import InfeasibleError
from optfuse.problem.instance import Instance
from optfuse.problem.solution import Solution
from optfuse.schedule.emit import held
from optfuse.schedule.step_memory import KernelMemory, kernel_memory
from optfuse.schedule.step_saving import Proposal, SavedValue
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.result import SolveResult
from optfuse.solver.solve import solve

#: Seconds for one solve of a graph of a proposal.
GRAPH_S = 8.0
#: A schedule whose peak is above the cap by no more than this share of it is solved again under the cap.
NEAR = 0.03


@dataclass(frozen=True, slots=True)
class Priced:
    """A proposal, and what follows from it.

    Attributes:
        saved: The names of what it keeps in memory.
        kept: The same by the joint graph's names.
        memory: By graph, what is in memory while each of its kernels runs.
        unseen: By graph, the bytes that are in memory while it runs and are none of its buffers.
        workspaces, held, trained: The bytes of libraries' workspaces, those that are in memory at any time, and those
            of the gradients of parameters.
        solved: Both graphs' problems and results.
    """

    proposal: Proposal
    choice: Choice | None
    saved: tuple[str, ...]
    kept: frozenset[str]
    memory: tuple[tuple[KernelMemory, ...], ...]
    unseen: Mapping[str, int]
    workspaces: int
    held: int
    trained: int
    solved: Sequence[tuple[Instance, SolveResult]]


def price(
    name: str,
    choice: Choice | None,
    halves: tuple[Captured, Captured],
    device: str,
    options: SolveOptions,
    problems: tuple[Extraction, ...] | None = None,
) -> Priced:
    """Solve both graphs of a choice. ``options`` may cap the memory of the whole step."""
    problems = problems or tuple(fusion_problem(half, device) for half in halves)
    solved = [(problem.instance, _solve(problem.instance, options)) for problem in problems]
    workspaces = workspace_bytes([problem.instance for problem in problems])
    trained = trained_bytes(*halves)
    beside = workspaces + options.optimizer_states * trained
    unseen = {half: out + beside for half, out in unseen_bytes(*halves).items()}
    solved = [
        (problem.instance, _fitted(problem, found, out, options))
        for problem, (_, found), out in zip(problems, solved, unseen.values(), strict=True)
    ]
    proposal = proposal_of(name, halves, problems, [(one.objective, one.solution) for _, one in solved], unseen)
    saved = tuple(one.name for one in proposal.saved)
    names = joint_names(halves[0])
    kept = frozenset(names.get(one, names.get(one.removesuffix("_copy"), one)) for one in saved)
    memory = tuple(
        kernel_memory(half, problem, found.solution, out)
        for half, problem, (_, found), out in zip(halves, problems, solved, unseen.values(), strict=True)
    )
    held = beside + sum(one.bytes for one in held_memory(halves[0]))
    return Priced(proposal, choice, saved, kept, memory, unseen, workspaces, held, trained, solved)


def _solve(instance: Instance, options: SolveOptions, cap: int | None = None) -> SolveResult:
    seconds = min(GRAPH_S, options.time_limit)
    return solve(instance, replace(options, rules=(), peak_memory=cap, time_limit=seconds))


def _fitted(problem: Extraction, found: SolveResult, beside: int, options: SolveOptions) -> SolveResult:
    """A graph's schedule; if its program's peak is slightly above the cap, it is solved again under the cap."""
    cap = options.peak_bytes
    if cap is not None and 0 < cap - beside < held(problem, found.solution).peak_bytes <= (1 + NEAR) * cap - beside:
        with suppress(InfeasibleError):
            return _solve(problem.instance, options, cap - beside)
    return found


def proposal_of(
    name: str,
    halves: tuple[Captured, Captured],
    problems: Sequence[Extraction],
    solved: Sequence[tuple[int, Solution]],
    unseen: Mapping[str, int],
) -> Proposal:
    """A step's proposal, of both graphs with their problems, objectives and solutions.

    ``unseen``: by graph, the bytes that are in memory while it runs and are none of its buffers.
    """
    pairs = zip(problems, solved, unseen.values(), strict=True)
    peak = max(held(problem, solution).peak_bytes + out for problem, (_, solution), out in pairs)
    saved = _saved_values(*halves)
    objective, shared = sum(one for one, _ in solved), sum(solution.saved_ps for _, solution in solved)
    return Proposal(name, objective, sum(one.bytes for one in saved), peak, saved, shared)


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
    """By half, the bytes in memory while its graph runs that are none of the graph's buffers.

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
