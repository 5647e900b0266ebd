"""How a graph's flat inputs and outputs belong to a model: what a schedule keeps of its capture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from optfuse.frontend.captured import CallSpec, Captured, InputSource


@dataclass(frozen=True, slots=True)
class Interface:
    """What a program needs beside its source.

    Attributes
    ----------
    inputs
        Where each graph input comes from, in order.
    outputs
        For each output of the program, its position among the captured graph's outputs, to which ``call`` refers. The
        outputs in between were new values of inputs; the program writes those in place.
    call
        How to flatten (args, kwargs) and to rebuild the outputs; None for graphs that a caller runs flat.
    constants
        Contents of the graph's constant buffers, by name.
    model
        The captured module, from which parameters and buffers are taken; None in a loaded plan.
    weights
        Parameters and buffers by qualified name, when there is no model.
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


def donated_inputs(captured: Captured, names: tuple[str, ...]) -> frozenset[str]:
    """Inputs whose memory nobody needs after the call: what a forward graph saved for this backward graph."""
    return frozenset(name for name, source in zip(names, captured.inputs, strict=True) if source.kind == "saved")
