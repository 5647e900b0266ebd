"""The bytes in memory at each level of a training step, without the forward values that the choice decides about.

It is read off a proposal that was solved: what its schedule has in memory while a kernel of the level runs, less the
forward values that ``solver.saving.lifetimes`` says are there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from optfuse.compiler.extract.extraction import Extraction
from optfuse.compiler.frontend.aot_autograd.joint import Choice, joint_names
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.problem.solution import Solution
from optfuse.schedule.library_buffers import library_buffers
from optfuse.schedule.saving_problem import SavingProblem
from optfuse.solver.memory.footprint import live_bytes_apart
from optfuse.solver.saving.choice import uses
from optfuse.solver.saving.lifetimes import forward_levels


@dataclass(frozen=True, slots=True)
class KernelMemory:
    """The bytes that are in memory while a kernel runs, and the joint graph's nodes that it computes."""

    bytes: int
    nodes: tuple[str, ...]


def kernel_memory(half: Captured, problem: Extraction, solution: Solution, unseen: int) -> tuple[KernelMemory, ...]:
    """By kernel of one of the two graphs, in order; ``unseen``: bytes that are there and none of its buffers."""
    names = joint_names(half)
    origins = [names.get(loop.origin.node, loop.origin.node) for loop in problem.graph.ops]
    live = live_bytes_apart(problem.instance, solution, library_buffers(problem))
    pairs = zip(live, solution.kernels, strict=True)
    return tuple(KernelMemory(unseen + size, tuple(origins[op] for op in kernel.ops)) for size, kernel in pairs)


def memory_beside(
    halves: Sequence[Sequence[KernelMemory]], problem: SavingProblem, saved: Collection[str]
) -> list[int]:
    """By level, the bytes beside stored values; ``saved``: the names of the values that the proposal keeps.

    A kernel that computes forward values alone runs at the level of the kernel of the backward half that it runs
    before. A level without a kernel has what the one before it has.
    """
    values, lifetimes = problem.values, problem.lifetimes
    stored = {values[one.value].name: k for k, one in enumerate(lifetimes.stored)}
    mine = list(lifetimes.outcome(stored[name] for name in saved if name in stored).live)
    for value, used, level in zip(values, uses(values), forward_levels(values), strict=True):
        if value.name in saved and value.name not in stored and (value.bytes or 0) >= lifetimes.small:
            last = lifetimes.forward_levels + max((*used.levels, value.last_called or 0), default=0)
            for k in range(level, min(last + 1, len(mine))):
                mine[k] += value.bytes or 0
    most = [0] * lifetimes.levels
    for kernels, levels in zip(halves, problem.levels_of_halves(), strict=True):
        level = max(levels.values(), default=0)
        for kernel in reversed(kernels):
            level = max((levels[name] for name in kernel.nodes if name in levels), default=level)
            at = min(level, lifetimes.levels - 1)
            most[at] = max(most[at], kernel.bytes)
    found: list[int] = []
    for all_bytes, ours in zip(most, mine, strict=True):
        found.append(max(0, all_bytes - ours) if all_bytes else found[-1] if found else 0)
    return found


def choice_of(problem: SavingProblem, saved: Collection[int]) -> Choice:
    """The choice that keeps the stored values ``saved``, by position, and the small values that are needed beside."""
    values = problem.values
    kept = {problem.lifetimes.stored[k].value for k in saved}
    stored = {one.value for one in problem.lifetimes.stored}
    ahead = [k for k, value in enumerate(values) if value.looped or value.called is not None]
    found: set[int] = set()
    again: set[int] = set()
    while ahead:
        k = ahead.pop()
        value = values[k]
        if k in found or k in again:
            continue
        size = None if value.view or k in stored else value.bytes
        small = size is not None and size < problem.lifetimes.small and (value.inputs or value.again_ps is None)
        if k in kept or small:
            found.add(k)
        else:
            again.add(k)
            ahead += value.inputs
    return Choice(frozenset(values[k].name for k in found), frozenset(values[k].name for k in again))
