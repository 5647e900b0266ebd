"""What model files share: random weights, quickly and the same each time, and example inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

#: Full-size weights repeat one block of this many random values: drawing every one would take half a minute.
_BLOCK = 1 << 20


def build(
    make: Callable[[], nn.Module],
    size: str,
    dtype: torch.dtype,
    skip_init: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> nn.Module:
    """Call ``make`` with ``dtype`` as the default, and return its model in evaluation mode.

    "small" models are initialised as they do it themselves, from seed 0. Full-size models are made under
    ``skip_init``, then given matrices of standard deviation 0.02, unit weights in norms, and zero biases. The caller's
    generator is left as it was.
    """
    generator_state = torch.random.get_rng_state()
    torch.manual_seed(0)
    try:
        with _default_dtype(dtype):
            if size == "small":
                return make().eval()
            with skip_init():
                model = make()
            if hasattr(model, "tie_weights"):
                model.tie_weights()  # pyright: ignore[reportCallIssue]  # transformers ties weights in the initialisation that was skipped
            _fill(model, dtype)
            return model.eval()
    finally:
        torch.random.set_rng_state(generator_state)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@torch.no_grad()
def _fill(model: nn.Module, dtype: torch.dtype) -> None:
    block = (torch.randn(_BLOCK, dtype=torch.float32) * 0.02).to(dtype)
    for name, parameter in model.named_parameters():
        flat = parameter.view(-1)
        if parameter.dim() < 2:
            flat.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        for start in range(0, flat.numel(), _BLOCK):
            piece = flat[start : start + _BLOCK]
            piece.copy_(block[: piece.numel()])


def tokens(rows: int, columns: int, vocabulary: int) -> torch.Tensor:
    """Token ids, the same at every call."""
    return torch.randint(0, vocabulary, (rows, columns), generator=torch.Generator().manual_seed(1))


def images(count: int, side: int, dtype: torch.dtype) -> torch.Tensor:
    """Images of ``side`` x ``side``, the same at every call."""
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(1), dtype=torch.float32).to(dtype)
