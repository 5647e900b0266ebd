"""Moments of a training step at which a bound can count memory: ops of the backward half.

Every choice of what is saved runs these ops, and after them what depends on them. So whatever the order, a forward
value that is needed from such a moment on is in memory then, or computed again from there on. Beside it are gradients:
those that the op's kernel has to read and write, and those that pass it by. Where ops may be computed in several
kernels (``SolveOptions.recompute``), no gradient is certain to be in memory, and there are no such moments.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from optfuse.compiler.extract.extraction import Extraction
from optfuse.compiler.frontend.aot_autograd.joint import JointStep, joint_names
from optfuse.compiler.frontend.graph.captured import Captured, donated_inputs
from optfuse.compiler.frontend.torch_internals.torch_bridge import is_tangent
from optfuse.problem.instance import Instance
from optfuse.schedule.saving_problem import joint_origins
from optfuse.solver.joint.peak_bound import Live, least_live
from optfuse.solver.saving.choice import ForwardValue

#: Moments of which a bound is told, and ops around which the gradients are looked at.
MOST, LOOKS = 3, 24


@dataclass(frozen=True, slots=True)
class Moment:
    """While the kernel of an op of the backward half runs.

    ``gradients``: bytes in memory that are no forward values, at least. ``values``: the forward values as they are
    needed from there on: by the op itself, or by what depends on it.
    """

    gradients: int
    values: tuple[ForwardValue, ...]


def moments(
    step: JointStep, half: Captured, problem: Extraction, values: Sequence[ForwardValue], calls: Collection[str]
) -> tuple[Moment, ...]:
    """The moments at which most is in memory, if no value is computed again: for schedules with each op in one kernel.

    ``half``, ``problem``: the backward graph of some choice; ``calls``: the joint graph's nodes that are library calls.
    """
    origins = joint_origins(half, problem)
    ops = {k: name for k, name in enumerate(origins) if name in step.backward}
    onward = _onward(step.backward)
    readers = [_mask(one.backward_readers, onward) for one in step.values]
    needed = {
        name: sum(value.bytes or 0 for value, mask in zip(values, readers, strict=True) if mask & onward[name][1])
        for name in set(ops.values())
    }
    live = least_live(_of_gradients(half, problem, ops, step), ops, LOOKS, lambda op: needed[ops[op]])
    held = _held_gradients(half, problem)
    most: dict[str, Live] = {}
    for op, found in live.items():
        most[ops[op]] = max(found, most.get(ops[op], found), key=lambda one: one.bytes)
    called = _mask(calls, onward)
    chosen = sorted(most, key=lambda name: -most[name].bytes - needed[name])[:MOST]
    return tuple(
        Moment(
            held + most[name].bytes,
            _replaceable(_needed(step, values, readers, onward[name][1], called), most[name].results),
        )
        for name in chosen
    )


def _held_gradients(half: Captured, problem: Extraction) -> int:
    """The bytes of gradients of the step's results that are in memory until the backward graph returns."""
    held = {
        name for name, node in zip(problem.graph.inputs, half.placeholders, strict=True) if is_tangent(node)
    } - donated_inputs(half, problem.graph.inputs)
    return sum(buffer.bytes for buffer in problem.instance.buffers if buffer.name in held and buffer.alias is None)


def _replaceable(values: Sequence[ForwardValue], results: Collection[int]) -> tuple[ForwardValue, ...]:
    """The values, of which those about as large as one of the results may be computed again of nothing.

    One that is computed again ahead of the moment may be where such a result is written: in memory, but not beside it.
    A saved one is not written over. Rows in memory may be longer than the value's own: up to twice its size.
    """
    return tuple(
        replace(value, inputs=())
        if value.inputs and not value.view and any(size <= 2 * (value.bytes or 0) <= 4 * size for size in results)
        else value
        for value in values
    )


def _of_gradients(half: Captured, problem: Extraction, ops: Collection[int], step: JointStep) -> Instance:
    """The fusion problem with forward values that take no memory: those given, and those computed again."""
    instance, names = problem.instance, joint_names(half)
    values = {value.name for value in step.values}
    made = {
        write.buffer
        for k, op in enumerate(instance.ops)
        if k not in ops
        for offer in op.offers
        for write in offer.writes
    }
    buffers = (
        replace(one, bytes=0) if k in made or (one.kind == "input" and names.get(one.name, one.name) in values) else one
        for k, one in enumerate(instance.buffers)
    )
    return replace(instance, buffers=tuple(buffers))


def _onward(backward: Mapping[str, Sequence[str]]) -> dict[str, tuple[int, int]]:
    """By node of the backward half, its bit, and the bits of it and of all that depend on it."""
    bit = {name: 1 << k for k, name in enumerate(backward)}
    found = dict(bit)
    for name in reversed([*backward]):
        for source in backward[name]:
            found[source] |= found[name]
    return {name: (bit[name], found[name]) for name in backward}


def _mask(names: Collection[str], onward: Mapping[str, tuple[int, int]]) -> int:
    mask = 0
    for name in names:
        mask |= onward[name][0] if name in onward else 0
    return mask


def _needed(
    step: JointStep, values: Sequence[ForwardValue], readers: Sequence[int], onward: int, called: int
) -> tuple[ForwardValue, ...]:
    """The forward values with those of their readers alone that are among ``onward``; ``called``: library calls."""
    found = []
    for one, value, mask in zip(step.values, values, readers, strict=True):
        is_called = one.is_result or bool(mask & onward & called)
        found.append(
            replace(
                value,
                called=value.called if is_called else None,
                last_called=value.last_called if is_called else None,
                looped=value.looped if mask & onward & ~called else frozenset(),
            )
        )
    return tuple(found)
