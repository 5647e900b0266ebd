"""How a graph's flat inputs and outputs belong to a model: what a schedule keeps of its capture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from optfuse.frontend.captured import CallSpec, Captured, InputSource


@dataclass(frozen=True, slots=True)
class Interface:
    """Attributes
    ----------
    inputs
        Where each graph input comes from, in order.
    call
        How to flatten (args, kwargs) and to rebuild the outputs; None for graphs that a caller runs flat.
    constants
        Contents of the graph's constant buffers, by FX name.
    model
        The captured module, from which parameters and buffers are taken; None in a loaded plan.
    weights
        Parameters and buffers by qualified name, when there is no model.
    """

    inputs: tuple[InputSource, ...]
    call: CallSpec | None
    constants: Mapping[str, torch.Tensor]
    model: Any = None
    weights: Mapping[str, torch.Tensor] | None = None


def interface_of(captured: Captured, model: Any = None) -> Interface:
    """Keep what is needed to run the graph later."""
    return Interface(captured.inputs, captured.call, captured.constants, model)


def donated_inputs(captured: Captured, names: tuple[str, ...]) -> frozenset[str]:
    """Inputs whose memory nobody needs after the call: what a forward graph saved for this backward graph."""
    return frozenset(name for name, source in zip(names, captured.inputs, strict=True) if source.kind == "saved")
