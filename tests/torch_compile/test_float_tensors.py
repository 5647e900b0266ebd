"""Floats that change from call to call: one graph where they only scale tensors, one a value where they do more."""

# ruff: noqa: SLF001  (operators on lists have no public names)
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.torch_compile.test_torch_compile import Compiler, compiled, fresh_dynamo

__all__ = ["compiled", "fresh_dynamo"]

RATES = (0.1, 0.3, 0.7, 0.01)


def scaled(x: Tensor, y: Tensor, rate: float) -> Any:
    return x.mul(1 - rate * 0.5).add(y, alpha=-rate), torch.addcmul(x, x, y, value=rate), rate / (y.abs() + 1)


def written(x: Tensor, y: Tensor, rate: float) -> Any:
    x.mul_(1 - rate).addcdiv_(y, y.abs() + 1, value=-math.sqrt(rate) / 2)
    y.lerp_(x, rate)
    return x - y


def listed(x: Tensor, y: Tensor, rate: float) -> Any:
    torch._foreach_add_([x, y], [y * 2, x / 3], alpha=rate)
    roots = torch._foreach_mul([x, y], rate**2)
    torch._foreach_addcmul_(roots, [x, y], [y, x], rate)
    return roots[0] * rate + roots[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("function", [scaled, written, listed])
def test_a_float_that_scales_tensors_makes_one_graph(
    compiled: Compiler, function: Callable[[Tensor, Tensor, float], Any], dtype: torch.dtype
) -> None:
    run = compiled(function)
    for rate in RATES:
        ours = [torch.randn(5, 7).to(dtype) for _ in range(2)]
        theirs = [x.clone() for x in ours]
        found, expected = run(*ours, rate), function(*theirs, rate)
        close = {"atol": 0.03, "rtol": 0.03} if dtype is torch.bfloat16 else {}  # kernels round at the end alone
        torch.testing.assert_close((found, ours), (expected, theirs), **close)
    assert len(compiled.names()) == 2  # the first value's, and that of all others


def test_a_gradient_flows_through_what_a_float_scales(compiled: Compiler) -> None:
    run = compiled(lambda x, rate: (torch.mul(x, rate) + x.sin()).sum())
    for rate in RATES:
        x = torch.randn(5, requires_grad=True)
        run(x, rate).backward()
        torch.testing.assert_close(x.grad, rate + x.detach().cos())
    assert len(compiled.names()) == 4  # two graphs, forward and backward


def test_a_float_with_other_uses_is_a_graph_for_each_value(compiled: Compiler) -> None:
    def function(x: Tensor, rate: float) -> Tensor:
        return torch.nn.functional.leaky_relu(x, rate)

    run = compiled(function)
    for rate in RATES:
        x = torch.randn(5, 7)
        torch.testing.assert_close(run(x, rate), function(x, rate))
    assert len(compiled.names()) == len(RATES)
