"""The problem of what a training step saves: its forward values with their prices, from the joint graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from torch.fx import Node

from optfuse.compiler.extract.extraction import Extraction
from optfuse.compiler.frontend.aot_autograd.joint import JointStep, joint_names
from optfuse.compiler.frontend.aot_autograd.kept_values import held_memory
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.simplify.inline_cheap import LEAST_BYTES
from optfuse.problem.cost import MIB, kernel_price
from optfuse.problem.instance import Device
from optfuse.solver.saving.choice import ForwardValue
from optfuse.solver.saving.lifetimes import Lifetimes, forward_levels


@dataclass(frozen=True, slots=True)
class SavingProblem:
    """The constraint model's data.

    Attributes:
        values: What depends on no gradient.
        calls: The joint graph's nodes that are library calls.
        levels: By node of the backward half: the number of library calls on a longest path to it.
        lifetimes: The values that may take room while the backward graph runs.
    """

    values: tuple[ForwardValue, ...]
    calls: frozenset[str]
    levels: Mapping[str, int]
    lifetimes: Lifetimes

    def levels_of_halves(self) -> tuple[dict[str, int], dict[str, int]]:
        """By node of the forward half, and of the backward half, its level as ``lifetimes`` counts them."""
        names = [value.name for value in self.values]
        later = self.lifetimes.forward_levels
        forward = dict(zip(names, forward_levels(self.values), strict=True))
        return forward, {name: later + level for name, level in self.levels.items()}


def saving_problem(
    step: JointStep, halves: Sequence[Captured], problems: Sequence[Extraction], device: Device
) -> SavingProblem:
    """The data of the constraint model, from the joint graph and the fusion problems of one way to split it.

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
        for k, (op, name) in enumerate(zip(problem.instance.ops, joint_origins(half, problem), strict=True)):
            alone[name] += min(kernel_price(problem.instance, (k,), offer.scheme).total for offer in op.offers)
            if op.kind != "loop":
                calls.add(name)
            elif any(offer.reduces for offer in op.offers):
                reduced.add(name)
    levels = _levels(step, calls)
    held, copies = _results(halves[0])
    apart = _apart(step, {*joint_origins(halves[0], problems[0])}, calls)
    forward_calls = {value.name for value in step.values if value.in_forward and value.name in calls}
    values: list[ForwardValue] = []
    for value in step.values:
        view = value.is_view and value.name not in copies
        size = 0 if view or value.bytes is None else value.bytes
        moved = size * device.dram_ps_per_mib // MIB
        part = value.is_part and step.values[value.inputs[0]].name in calls  # of what a library call returns
        in_memory = part or value.name in forward_calls or not forward_calls.isdisjoint(value.readers)
        save = 0 if in_memory or value.name in held | copies else moved
        called = [levels[name] for name in value.backward_readers if name in calls]
        called += [max(levels.values(), default=0)] if value.is_result else []
        again = 0
        if value.name in calls | reduced or (value.bytes is None and not view):
            again = alone[value.name]
        elif value.inputs and 0 < size < LEAST_BYTES:
            again = device.launch_ps
        for size in (step.values[u].bytes or 0 for u in apart.get(value.name, ())):
            save += device.launch_ps + size * device.dram_ps_per_mib // MIB
        values.append(
            ForwardValue(
                value.name,
                value.inputs,
                None if view or value.bytes is None else 0 if value.name in held | copies else size,
                save_ps=save,
                again_ps=again if value.repeatable else None,
                write_ps=moved,
                read_ps=moved,
                library=part or value.name in calls,
                view=view,
                called=min(called, default=None),
                last_called=max(called, default=None),
                looped=frozenset(levels[name] for name in value.backward_readers if name not in calls),
            )
        )
    return SavingProblem(tuple(values), frozenset(calls), levels, Lifetimes.of(values))


def _results(forward: Captured) -> tuple[set[str], set[str]]:
    """The names of the joint graph's nodes whose memory holds the step's results, and of results that are copies."""
    names = joint_names(forward)
    held = {names.get(memory.name, memory.name) for memory in held_memory(forward)}
    copied = (forward.outputs[k] for k in forward.visible or () if k in forward.strides)
    return held, {names[node.name] for node in copied if isinstance(node, Node)}


def joint_origins(half: Captured, problem: Extraction) -> list[str]:
    """By op of a graph, the node of the joint graph that it computes."""
    names = joint_names(half)
    return [names.get(loop.origin.node, loop.origin.node) for loop in problem.graph.ops]


def _apart(step: JointStep, made: Collection[str], calls: Collection[str]) -> dict[str, set[int]]:
    """By value that only the backward half needs: the library's results that it alone would read in the forward graph.

    ``made``: what ops of the forward graph compute; other values of it are computed by their readers, or in libraries.
    """
    values = step.values
    sources: list[set[int]] = []
    read: set[int] = set()
    for value in values:
        mine: set[int] = set()
        for u in value.inputs:
            hidden = values[u].is_view or (values[u].in_forward and values[u].name not in made)
            mine |= sources[u] if hidden else {u}
        sources.append(mine)
        if value.in_forward and value.name in made and value.name not in calls:
            read |= mine
    lonely = [(value, mine - read) for value, mine in zip(values, sources, strict=True) if not value.in_forward]
    return {value.name: {u for u in mine if values[u].name in calls} for value, mine in lonely if not value.is_view}


def _levels(step: JointStep, calls: Collection[str]) -> dict[str, int]:
    """By node of the backward half: the number of library calls on a longest path to it."""
    levels: dict[str, int] = {}
    for name, sources in step.backward.items():
        levels[name] = max((levels[source] + (source in calls) for source in sources), default=0)
    return levels
