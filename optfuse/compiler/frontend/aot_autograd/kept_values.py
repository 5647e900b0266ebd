"""Where the values saved for the backward graph lie: which share storage, and which the caller holds as well."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch.fx import Node

from optfuse.compiler.frontend.graph.captured import Captured, Memory
from optfuse.compiler.frontend.graph.rewrite import base_of, fake
from optfuse.compiler.frontend.torch_internals.torch_sizes import hint_of


@dataclass(frozen=True, slots=True)
class Kept:
    """How a result leaves a forward graph: its strides in elements, and its memory."""

    strides: tuple[int, ...]
    memory: Memory


def kept_values(captured: Captured, names: Sequence[str | None]) -> dict[str, Kept]:
    """How outputs leave the graph, by the names that a backward graph knows them by."""
    held = {memory.name for memory in held_memory(captured)}
    pairs = zip(captured.inputs, captured.placeholders, strict=True)
    stays = {node.name for source, node in pairs if source.kind in ("parameter", "buffer")}
    found: dict[str, Kept] = {}
    # further outputs are new values of inputs
    for position, (name, node) in enumerate(zip(names, captured.outputs, strict=False)):
        value = fake(node) if isinstance(node, Node) else None
        if name is not None and value is not None:
            memory = memory_of_output(captured, position)
            strides = captured.strides.get(position, tuple(value.stride()))
            found[name] = Kept(strides, replace(memory, held=memory.name in held, stays=memory.name in stays))
    return found


def held_memory(forward: Captured) -> tuple[Memory, ...]:
    """What the caller of a training step has in memory while the backward graph runs: the step's inputs and results."""
    results = [memory_of_output(forward, k) for k in forward.visible or () if isinstance(forward.outputs[k], Node)]
    inputs = [Memory(node.name, _bytes(fake(node))) for node in forward.placeholders if fake(node) is not None]
    return tuple({one.name: replace(one, held=True) for one in (*results, *inputs)}.values())


def memory_of_output(captured: Captured, position: int) -> Memory:
    """The memory that an output lies in: one with strides of its own is a copy."""
    node = captured.outputs[position]
    assert isinstance(node, Node), "the output is a tensor"
    if position in captured.strides:
        value = node.meta["val"]
        return Memory(f"{node.name}_copy", math.prod(map(hint_of, value.shape)) * value.element_size())
    base = base_of(node)
    return Memory(base.name, _bytes(fake(base)))


def _bytes(value: torch.Tensor | None) -> int:
    """From a tensor's first element in memory to its last, at the hints of its sizes."""
    shape = [] if value is None else [hint_of(n) for n in value.shape]
    if value is None or 0 in shape:
        return 0
    last = sum((n - 1) * hint_of(step) for n, step in zip(shape, value.stride(), strict=True))
    return (1 + last) * value.element_size()
