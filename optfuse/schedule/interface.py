"""How a graph's flat inputs and outputs belong to a model: what a schedule keeps of its capture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from optfuse.compiler.frontend.calls.structure import structure_from_json, structure_to_json
from optfuse.compiler.frontend.graph.captured import CallSpec, Captured, InputSource
from optfuse.errors import PlanError


@dataclass(frozen=True, slots=True)
class Interface:
    """What a program needs beside its source.

    Attributes:
        inputs: Where each graph input comes from, in order.
        outputs: For each output of the program, its position among the captured graph's outputs, to which ``call``
            refers. The outputs in between were new values of inputs; the program writes those in place.
        call: How to flatten (args, kwargs) and to rebuild the outputs; None for graphs that a caller runs flat.
        constants: Contents of the graph's constant buffers, by name.
        model: The captured module, from which parameters and buffers are taken; None in a loaded plan.
        weights: Parameters and buffers by qualified name, when there is no model.
    """

    inputs: tuple[InputSource, ...]
    outputs: tuple[int, ...]
    call: CallSpec | None
    constants: Mapping[str, torch.Tensor]
    model: Any = None
    weights: Mapping[str, torch.Tensor] | None = None


def interface_of(captured: Captured, model: Any = None) -> Interface:
    """Keep what is needed to run the graph later."""
    written = {position for position, _ in captured.mutations}
    kept = tuple(k for k in range(len(captured.outputs)) if k not in written)
    return Interface(captured.inputs, kept, captured.call, captured.constants, model)


def interface_to_json(interface: Interface) -> dict[str, Any]:
    """Everything but the tensors, as plain data.

    Raises:
        PlanError: If the call has arguments or classes that are no plain data.
    """
    return {
        "inputs": [[source.kind, source.target, source.position] for source in interface.inputs],
        "outputs": list(interface.outputs),
        "call": None if interface.call is None else _call_to_json(interface.call),
    }


def interface_from_json(
    data: Mapping[str, Any], constants: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor] | None = None
) -> Interface:
    """The interface that ``interface_to_json`` wrote, with its tensors.

    Raises:
        UnknownClassError: For a class of the call's that this process has not registered: its library is not imported.
        KeyError, TypeError, ValueError: For other data than that.
    """
    return Interface(
        inputs=tuple(InputSource(kind, target, position) for kind, target, position in data["inputs"]),
        outputs=tuple(int(k) for k in data["outputs"]),
        call=None if data["call"] is None else _call_from_json(data["call"]),
        constants=constants,
        weights=weights,
    )


def _call_to_json(call: CallSpec) -> dict[str, Any]:
    for position, value in (*call.fixed, *call.literals):
        if not isinstance(value, (bool, int, float, str, type(None))):
            raise PlanError(
                f"argument {position} is a {type(value).__name__}, which a plan cannot hold; pass plain data"
            )
    return {
        "in_spec": structure_to_json(call.in_spec),
        "out_spec": structure_to_json(call.out_spec),
        "fixed": [list(pair) for pair in call.fixed],
        "shared": [list(pair) for pair in call.shared],
        "user_outputs": list(call.user_outputs),
        "literals": [list(pair) for pair in call.literals],
    }


def _call_from_json(data: Any) -> CallSpec:
    return CallSpec(
        structure_from_json(data["in_spec"]),
        structure_from_json(data["out_spec"]),
        tuple((int(k), value) for k, value in data["fixed"]),
        tuple((int(a), int(b)) for a, b in data["shared"]),
        tuple(int(k) for k in data["user_outputs"]),
        tuple((int(k), value) for k, value in data["literals"]),
    )
