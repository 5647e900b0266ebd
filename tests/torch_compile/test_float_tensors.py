"""Floats that change from call to call: one graph where they only scale tensors, one a value where they do more."""

# ruff: noqa: SLF001  (operators on lists have no public names)
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import optfuse
from optfuse.compiler.frontend.sizes.float_tensors import floats_as_tensors
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


@pytest.mark.spread(5, 1)
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


def drawn(x: Tensor) -> tuple[Tensor, ...]:
    share = random.uniform(0.5, 1.5)
    return x * share, (x.sum() - share) * random.randint(1, 9), torch.tensor(share, dtype=x.dtype) + x


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
@pytest.mark.parametrize("dynamic", [None, True])
def test_numbers_that_a_program_draws_are_drawn_at_each_call(compiled: Compiler, dynamic: bool | None) -> None:
    run = compiled(drawn, dynamic=dynamic)
    for rows in (3, 4):
        x = torch.randn(rows, 5, requires_grad=True)
        results = []
        for function in (run, drawn):
            random.seed(rows)
            found = function(x)
            results.append([*found, *torch.autograd.grad(sum(result.sum() for result in found), x)])
        torch.testing.assert_close(*results)


def test_a_gradient_flows_through_what_a_float_scales(compiled: Compiler) -> None:
    run = compiled(lambda x, rate: (torch.mul(x, rate) + x.sin()).sum())
    for rate in RATES:
        x = torch.randn(5, requires_grad=True)
        run(x, rate).backward()
        torch.testing.assert_close(x.grad, rate + x.detach().cos())
    assert len(compiled.names()) == 4  # two graphs, forward and backward


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    "function",
    [
        lambda x, rate: torch.nn.functional.leaky_relu(x, rate),
        lambda x, rate: torch.div(x, rate, rounding_mode="floor"),
        lambda x, rate: x.to(torch.int32) * rate,
    ],
)
def test_a_float_with_other_uses_is_a_graph_for_each_value(
    compiled: Compiler, function: Callable[[Tensor, float], Tensor]
) -> None:
    run = compiled(function)
    for rate in RATES:
        x = torch.randn(5, 7)
        torch.testing.assert_close(run(x, rate), function(x, rate))
    assert len(compiled.names()) == len(RATES)


def test_floats_go_to_the_device_of_the_tensors_that_they_scale() -> None:
    """Unless one with dimensions is on the host, where no number of a GPU may meet it."""
    found: list[Any] = []

    def function(x: Tensor, y: Tensor, count: Tensor, rate: float) -> Any:
        return x * rate, count * rate, y + 1

    def backend(graph: Any, _: Any) -> Any:
        found.append(graph)
        return graph

    for rate in RATES[:2]:
        torch.compile(function, backend=backend)(torch.ones(3), torch.ones(3), torch.ones(()), rate)
    (*_, traced), devices = found, []
    for where in ("cuda", "cpu"):
        for node in traced.graph.nodes:
            value = node.meta.get("example_value")
            if isinstance(value, Tensor) and value.dim():
                with value.fake_mode:
                    node.meta["example_value"] = torch.empty(value.shape, device=where)
        rewritten = floats_as_tensors(traced)
        assert rewritten is not None
        devices.append(rewritten[1] and rewritten[1].type)
    assert devices == ["cuda", None]


def test_a_number_that_makes_dynamo_trace_anew_leaves_no_graph_unscheduled() -> None:
    def written_apart(x: Tensor, number: Tensor) -> Tensor:
        x = x * 1
        x[::3] = number
        return x

    run = torch.compile(written_apart, backend="optfuse", options={"cache": False})
    before = len(optfuse.compiled_graphs())
    for number in (2.0, 3.0):
        value = torch.tensor(number, dtype=torch.float64)
        torch.testing.assert_close(run(torch.ones(6), value), written_apart(torch.ones(6), value))
    assert [graph.why_not for graph in optfuse.compiled_graphs()[before:]] == [""]
