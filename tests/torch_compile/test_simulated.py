"""Calls that kernels cannot serve run as traced: fake tensors, ``vmap`` over gradients, dual numbers, modes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

import optfuse
from optfuse.runtime.environment import mode

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")

WEIGHT = torch.randn(6, 4)


def function(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() @ WEIGHT).square().sum(1)


@pytest.fixture(params=["compiled", "taken from the cache"])
def compiled(request: pytest.FixtureRequest) -> Callable[[torch.Tensor], torch.Tensor]:
    """The function, compiled for inference and for training, here or by an earlier Dynamo."""
    made = torch.compile(function, backend="optfuse")
    for _ in range(1 if request.param == "compiled" else 2):
        torch.compiler.reset()
        made(torch.randn(5, 6))
        made(torch.randn(5, 6, requires_grad=True))
    assert not any(graph.why_not for graph in optfuse.compiled_graphs()[-3:])
    return made


@pytest.mark.spread(2)
def test_gradients_of_many_directions_at_once(compiled: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x, directions = torch.randn(5, 6, requires_grad=True), torch.eye(5)
    (got,) = torch.autograd.grad(compiled(x), x, directions, is_grads_batched=True)
    (wanted,) = torch.autograd.grad(function(x), x, directions, is_grads_batched=True)
    torch.testing.assert_close(got, wanted)


@pytest.mark.spread(2)
def test_tangents_are_not_lost(compiled: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.randn(5, 6)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        got, wanted = (forward_ad.unpack_dual(f(dual)).tangent for f in (compiled, function))
        torch.testing.assert_close(got, wanted)


@pytest.mark.spread(2)
def test_modes_see_operators(compiled: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with FlopCounterMode(display=False) as counter:
        compiled(torch.randn(5, 6))
    assert counter.get_total_flops() == 2 * 5 * 6 * 4
    with FakeTensorMode():
        step = torch.compile(lambda x, w: (x @ w).relu() + 1, backend="optfuse")
        assert step(torch.randn(3, 2), torch.randn(2, 5, requires_grad=True)).shape == (3, 5)
