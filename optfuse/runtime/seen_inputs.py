"""Recognize inputs that are like those of an earlier call: one check of torch's own, in place of several a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

#: So often a program looks for the kind of inputs that it is called with; where the kind changes more often, it checks.
MOST_KINDS = 8

#: Checks types, dispatch keys (devices, bits of negation and conjugation), dtypes, shapes and strides of all tensors.
_Guards: Any = getattr(torch._C._dynamo.guards, "TensorGuards", None)  # noqa: SLF001  # pyright: ignore


@dataclass(frozen=True, slots=True)
class Seen:
    """Inputs that a program has accepted: how they are recognized, and what was done with them.

    ``moved`` are the positions of numbers in the host's memory that are copied to ``main``; the others are taken as
    they are.
    """

    guards: Any
    count: int
    moved: tuple[int, ...]
    main: torch.device

    def matches(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether inputs are like those, so that they need not be checked one by one. No tensor may come twice."""
        return len(inputs) == self.count and self.guards.check(*inputs)


def seen(inputs: Sequence[torch.Tensor], moved: tuple[int, ...], main: torch.device) -> Seen | None:
    """A check that recognizes equal inputs later without holding them; None where this torch has none."""
    if _Guards is None or not inputs or not all(isinstance(x, torch.Tensor) for x in inputs):
        return None
    sizes, strides = [list(x.shape) for x in inputs], [list(x.stride()) for x in inputs]
    try:
        guards = _Guards(*inputs, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    except (TypeError, ValueError, RuntimeError, SystemError):  # another torch's check takes other arguments
        return None
    return Seen(guards, len(inputs), moved, main)
