"""Gradients of cumulative products are torch's, with zeros or without, and of few operators."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from optfuse.compiler.frontend.operators.product_gradients import product_gradient, scan_product_gradients
from optfuse.runtime.environment import mode
from tests.torch_compile.test_torch_compile import Compiler, compiled

__all__ = ["compiled"]


@pytest.mark.parametrize("zeros", [(), (3,), (0,), (5,), (1, 4), (0, 1, 5), (0, 1, 2, 3, 4, 5)])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gradients_are_torchs(zeros: tuple[int, ...], dim: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 6, dtype=torch.float64)
    x.diagonal()[list(zeros)] = 0
    x[list(zeros), 2] = 0
    x.requires_grad_()
    products, gradient = x.cumprod(dim), torch.randn(6, 6, dtype=torch.float64)
    wanted = torch.autograd.grad(products, x, gradient)[0]
    torch.testing.assert_close(product_gradient(x, products, gradient, dim), wanted)


def test_a_graph_keeps_its_products() -> None:
    graph = torch.fx.symbolic_trace(lambda x: torch.cumprod(x, dim=1) + x.cumprod(0, dtype=torch.float64))
    rewritten, x = scan_product_gradients(graph), torch.randn(3, 4)
    torch.testing.assert_close(rewritten(x), graph(x))
    torch.autograd.gradgradcheck(rewritten, torch.randn(3, 4, dtype=torch.float64, requires_grad=True))


def weights(x: Tensor) -> Tensor:
    """How much of the light of each sample of a ray arrives."""
    return (x.sigmoid() * (1 - x.sigmoid()).cumprod(-1)).sum(-1)


@pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")
def test_training_steps_with_products_of_any_number_of_factors_have_one_schedule(compiled: Compiler) -> None:
    fast = compiled(weights, dynamic=True)
    for rays, samples in ((5, 12), (6, 9), (4, 16)):
        x = torch.randn(rays, samples)
        one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        fast(one).square().sum().backward()
        weights(other).square().sum().backward()
        torch.testing.assert_close(one.grad, other.grad)
    assert compiled.names() == ["compiled0.forward", "compiled0.backward"]
    assert all(len(schedule.graph.ops) < 60 for run in compiled.runs for schedule in run.record.schedules)
