"""What tests of whole programs share: inputs that are the same each time, and a model's program."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import optfuse
from tests.oracle.judging import OPTIONS, Function


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + 17)
    return torch.randn(*shape, generator=generator).to(dtype)


def made(model: Any, *args: Any, **kwargs: Any) -> Any:
    """The program of a model or function."""
    model = model if isinstance(model, nn.Module) else Function(model)
    return optfuse.optimize(model, args, kwargs, options=OPTIONS).compile()
