"""Parts of a model under inference mode are scheduled, and have no gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

from optfuse.compiler.frontend.passes.inference_regions import leave_inference_mode
from optfuse.runtime.environment import mode
from tests.torch_compile.test_torch_compile import Compiler, planned


@torch.inference_mode()
def _statistics(x: Tensor) -> Tensor:
    first = x[0]
    with torch.enable_grad():
        second = x[1] * 2
    return (first + second).sum()


def _within(x: Tensor) -> Tensor:
    y = x.sin()
    return y * (_statistics(y) + 1) + x


def _back_and_forth(x: Tensor) -> Tensor:
    y = x * 2
    with torch.inference_mode():
        shift = y[0] + 1
        with torch.inference_mode(False):
            z = x[1] * 3
    with torch.no_grad():
        shift = shift + _statistics(y)
    return y * 2 + z + shift


def _all(x: Tensor) -> Tensor:
    return _statistics(x)


@pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("function", [_within, _all])
def test_like_no_grad(function: Callable[[Tensor], Tensor], train: bool) -> None:
    torch._dynamo.reset()  # noqa: SLF001 - its public face
    compiled, x = Compiler(), torch.randn(3, 4, requires_grad=train)
    got, wanted = compiled(function)(x), function(x)
    torch.testing.assert_close(got, wanted)
    assert got.requires_grad == wanted.requires_grad
    if wanted.requires_grad:
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x) for y in (got, wanted)))
    assert planned(compiled)


def test_grad_modes_around_and_within() -> None:
    found: list[GraphModule] = []

    def keep(graph: GraphModule, _: Any) -> GraphModule:
        found.append(graph)
        return graph

    torch._dynamo.reset()  # noqa: SLF001 - its public face
    torch.compile(_back_and_forth, backend=keep)(torch.randn(3, 4, requires_grad=True))
    graph = leave_inference_mode(found[0], enabled=True)
    targets = [node.target for node in graph.graph.nodes]
    assert not any("inference_mode" in str(target) for target in targets)
    switches = [node.args[0] for node in graph.graph.nodes if "set_grad_enabled" in str(node.target)]
    #  in, out for z, in again, out; no_grad, in, enable_grad within, back, out to no_grad, and its end
    assert switches == [False, True, False, True, False, False, False, False, False, True]
    assert leave_inference_mode(graph, enabled=True) is graph
