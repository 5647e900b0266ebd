"""What the frontend hands to lowering: a functional ATen graph and how to call it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from optfuse.compiler.frontend.torch_internals.torch_bridge import TreeSpec, is_tangent
from optfuse.compiler.ir.size_decisions import Decisions

#: Whether autograd lets go of the gradients of a step's results while a backward graph runs (torch 2.13); else they are
#: in memory until it returns, also those that torch makes of zeros for a result that the loss does not depend on.
FREES_GRADIENTS = hasattr(torch.autograd.Function, "boxed_grads_call")

InputKind = Literal["parameter", "buffer", "user", "saved"]


@dataclass(frozen=True, slots=True)
class InputSource:
    """Where a placeholder's tensor comes from.

    ``target`` is a parameter's or buffer's qualified name, the key path of a user input (``args[0]``,
    ``kwargs['input_ids']``), or the name of what a backward graph receives. ``position`` is a user input's index among
    the flattened leaves of (args, kwargs). "saved" inputs exist only in backward graphs: values that the forward graph
    kept, and the gradients of its outputs.
    """

    kind: InputKind
    target: str
    position: int | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory that a result of a forward graph lies in: ``name`` is that of everything that shares it.

    ``bytes`` are all of it, also where a result is a window of a part. ``held``: the step's caller has it as a
    parameter, an input or a result, so that it outlives the backward graph. ``stays``: it is that of a parameter or
    buffer, which lies at the same address at each call.
    """

    name: str
    bytes: int
    held: bool = False
    stays: bool = False


@dataclass(frozen=True, slots=True)
class CallSpec:
    """How to flatten a user's (args, kwargs) and to rebuild the user's outputs.

    Args:
        in_spec, out_spec: Pytree structures of ``(args, kwargs)`` and of the model's result.
        fixed: Leaves of (args, kwargs) that are no tensors, as (position, value): the graph holds for these values
            alone.
        shared: Pairs of leaf positions (first, again) that were one and the same tensor at capture, and must be so at a
            call.
        user_outputs: Positions of the graph's outputs that are the leaves of the model's result, in order; one may
            occur twice.
        literals: Outputs that are no tensors, as (position, value): strings, and whatever else a graph passes through.
    """

    in_spec: TreeSpec
    out_spec: TreeSpec
    fixed: tuple[tuple[int, object], ...]
    shared: tuple[tuple[int, int], ...]
    user_outputs: tuple[int, ...]
    literals: tuple[tuple[int, object], ...] = ()


@dataclass(frozen=True, slots=True)
class Captured:
    """A functional graph of ATen overloads over static shapes.

    Args:
        name: "gpt2.inference", "gpt2.forward", "gpt2.backward".
        graph: Placeholders are tensors. Every node that yields tensors has ``meta["val"]`` (fake tensors, with the
            dtype and device of eager execution, and with its strides but where ``choose_layouts`` chose others). An
            output is a node, None, or a Python number.
        inputs: One entry per placeholder, in order.
        constants: ``get_attr`` target to its value.
        mutations: (output position, input position): the output's value must be copied into that input after the call.
            In training graphs and those of torch.compile AOTAutograd itself copies what it does not leave to the graph.
        visible: Output positions that reach the user as they are. None: all of them. A pass may let two other outputs
            (values kept for a backward graph) share memory with each other or with an input, but never these.
        strides: Output position to the strides (in elements) in which that output must leave, where they are not its
            node's.
        memory: By placeholder of a backward graph, the memory of what the forward graph kept. Gradients have none here.
        call: Only for graphs of ``capture``.
        decisions: Of a graph for a range of sizes, whose fake tensors have symbols in theirs.
        numbers: Symbols whose values a call of such a graph is given behind its tensors.
        remainder: Nodes that torch runs after the program, for no plan can hold them.
    """

    name: str
    graph: torch.fx.GraphModule
    inputs: tuple[InputSource, ...]
    constants: Mapping[str, torch.Tensor]
    mutations: tuple[tuple[int, int], ...] = ()
    visible: frozenset[int] | None = None
    strides: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    memory: Mapping[str, Memory] = field(default_factory=dict)
    call: CallSpec | None = None
    decisions: Decisions | None = None
    numbers: tuple[str, ...] = ()
    remainder: tuple[str, ...] = ()

    @property
    def placeholders(self) -> tuple[torch.fx.Node, ...]:
        """The graph's placeholder nodes, one per entry of ``inputs``."""
        return tuple(node for node in self.graph.graph.nodes if node.op == "placeholder")

    @property
    def outputs(self) -> tuple[torch.fx.Node | int | float | bool | None, ...]:
        """The graph's flat outputs."""
        return tuple(self.graph.graph.output_node().args[0])


def donated_inputs(captured: Captured, names: Sequence[str]) -> frozenset[str]:
    """Inputs, under other names, whose memory is free after their last read: what a forward graph saved, and gradients.

    Parameters and results of the step stay with its caller. So do the gradients of its results where torch's autograd
    holds them until the backward graph returns.
    """
    held = {name for name, memory in captured.memory.items() if memory.held}
    if not FREES_GRADIENTS:
        held.update(node.name for node in captured.placeholders if is_tangent(node))
    triples = zip(names, captured.inputs, captured.placeholders, strict=True)
    return frozenset(name for name, source, node in triples if source.kind == "saved" and node.name not in held)


def shared_memory(captured: Captured, names: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Inputs, under other names, to the first input that lies in the same memory, and all bytes of that memory."""
    first: dict[str, str] = {}
    found: dict[str, tuple[str, int]] = {}
    for name, node in zip(names, captured.placeholders, strict=True):
        memory = captured.memory.get(node.name)
        if memory is not None:
            found[name] = first.setdefault(memory.name, name), memory.bytes
    return found
