"""Leave torch's modes as they were where the trace of a graph that enters and leaves them stops in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch
from torch.autograd import forward_ad

# these have no public names
_functorch = torch._C._functorch  # noqa: SLF001
_saved_hooks = torch._C._autograd  # noqa: SLF001


@contextmanager
def modes_restored_on_error() -> Iterator[None]:
    """Restore transforms, gradient modes and autocast if the block raises.

    A graph of Dynamo's holds the entry and the exit of ``torch.func.jvp``, ``torch.no_grad`` or ``torch.autocast`` as
    nodes of their own. Where an operator between them raises, the exit does not run.
    """
    undo = [_transforms(), _gradients(), _hooks(), *map(_autocast, ("cpu", "cuda"))]
    try:
        with torch._C._PreserveDispatchKeyGuard():  # noqa: SLF001
            yield
    except BaseException:
        for each in undo:
            each()
        raise


def _transforms() -> Callable[[], None]:
    """How to leave the levels of ``torch.func`` and of forward gradients that are not entered now."""
    depth, level = _functorch.get_dynamic_layer_stack_depth(), forward_ad._current_level  # noqa: SLF001

    def undo() -> None:
        _functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
        if level < 0:
            with suppress(RuntimeError):  # where no level was entered
                torch._C._exit_dual_level(level=0)  # noqa: SLF001

    return undo


def _gradients() -> Callable[[], None]:
    """How to switch gradients on or off as they are now."""
    backward, forward = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()  # noqa: SLF001

    def undo() -> None:
        torch._C._set_grad_enabled(backward)  # noqa: SLF001
        torch._C._set_fwd_grad_enabled(forward)  # noqa: SLF001

    return undo


def _hooks() -> Callable[[], None]:
    """How to allow or forbid hooks of saved tensors as they are now."""
    message = _saved_hooks._saved_tensors_hooks_get_disabled_error_message()  # noqa: SLF001

    def undo() -> None:
        if message is None:
            _saved_hooks._saved_tensors_hooks_enable()  # noqa: SLF001
        else:
            _saved_hooks._saved_tensors_hooks_disable(message)  # noqa: SLF001

    return undo


def _autocast(device: str) -> Callable[[], None]:
    """How to set autocast on a kind of device as it is now."""
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    cached, nesting = torch.is_autocast_cache_enabled(), _nesting()

    def undo() -> None:
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(cached)
        while _nesting() > nesting:
            if torch.autocast_decrement_nesting() == 0:
                torch.clear_autocast_cache()

    return undo


def _nesting() -> int:
    """How many autocast contexts are entered."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()
