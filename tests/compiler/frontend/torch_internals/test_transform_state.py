"""Torch's modes after a trace that stopped in between."""

# ruff: noqa: SLF001 - the entries that Dynamo writes into graphs have no public names

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._C import _functorch
from torch.autograd import forward_ad

from optfuse.compiler.frontend.torch_internals.transform_state import modes_restored_on_error


def modes() -> tuple[Any, ...]:
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return (
        _functorch.get_dynamic_layer_stack_depth(),
        torch.is_grad_enabled(),
        torch._C._is_fwd_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
        nesting,
        torch._C._autograd._saved_tensors_hooks_get_disabled_error_message(),
    )


def enter_all() -> None:
    """As a graph does it that has not come to its exits."""
    _functorch._jvp_increment_nesting()
    torch._C._enter_dual_level()
    _functorch._vmap_increment_nesting(3, "error")
    torch._C._autograd._saved_tensors_hooks_disable("not in here")
    torch._C._set_grad_enabled(False)
    torch._C._set_fwd_grad_enabled(False)
    torch.amp.autocast_mode._enter_autocast("cpu", torch.float16, True, False)


def stopped_after(enter: Callable[[], Any]) -> None:
    with modes_restored_on_error():
        enter()
        raise ValueError("planted")


@pytest.mark.parametrize("inside", [False, True])
def test_an_error_leaves_the_modes_as_they_were(inside: bool) -> None:
    def fail() -> None:
        before = modes()
        with pytest.raises(ValueError, match="planted"):
            stopped_after(enter_all)
        assert modes() == before

    if not inside:
        fail()
        with forward_ad.dual_level():  # there is one level at a time
            assert torch.func.grad(torch.sin)(torch.tensor(0.0)) == 1
        return
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        fail()


def test_levels_of_the_caller_stay() -> None:
    with forward_ad.dual_level():
        x = forward_ad.make_dual(torch.ones(2), torch.full((2,), 3.0))
        with pytest.raises(ValueError, match="planted"):
            stopped_after(_functorch._grad_increment_nesting)
        assert forward_ad.unpack_dual(x * 2).tangent.tolist() == [6, 6]
    assert _functorch.get_dynamic_layer_stack_depth() == 0


def test_what_does_not_fail_may_change_modes() -> None:
    with torch.enable_grad():
        with modes_restored_on_error():
            torch._C._set_grad_enabled(False)
        assert not torch.is_grad_enabled()
