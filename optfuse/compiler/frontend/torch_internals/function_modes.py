"""Run compiled functions outside of active ``TorchFunctionMode``s, whose effect Dynamo has already traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

# torch.overrides has no public names for these
_depth = torch._C._len_torch_function_stack  # noqa: SLF001
_pop = torch._C._pop_torch_function_stack  # noqa: SLF001
_push = torch._C._push_on_torch_function_stack  # noqa: SLF001


def outside_function_modes(run: Callable[..., Any]) -> Callable[..., Any]:
    """``run`` with no function mode active: none changes a traced function twice, or tensors of our own."""

    def call(*arguments: Any) -> Any:
        if not _depth():
            return run(*arguments)
        with _without_modes():
            return run(*arguments)

    return call


@contextmanager
def _without_modes() -> Iterator[None]:
    modes = [_pop() for _ in range(_depth())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            _push(mode)
