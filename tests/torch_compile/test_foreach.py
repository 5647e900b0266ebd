"""Operators on lists of tensors: they are computed one by one, in kernels that share launches."""

# ruff: noqa: SLF001  (operators on lists have no public names)
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from optfuse.compiler.frontend.operators import foreach
from tests.torch_compile.test_torch_compile import Compiler, compiled

__all__ = ["compiled"]

Lists = tuple[list[Tensor], list[Tensor]]


def lists() -> Lists:
    torch.manual_seed(0)
    return [torch.rand(n, 3) + 0.5 for n in (1, 4, 5)], [torch.rand(n, 3) + 0.5 for n in (1, 4, 5)]


CALLS: dict[str, Callable[[list[Tensor], list[Tensor]], Any]] = {
    "unary": lambda a, _: [torch._foreach_sqrt(torch._foreach_neg(torch._foreach_neg(a))), torch._foreach_rsqrt(a)],
    "scalar": lambda a, _: torch._foreach_add(torch._foreach_mul(a, 0.9), 2),
    "scalars": lambda a, _: torch._foreach_div(a, [1.0, 2.0, 3.0]),
    "lists": lambda a, b: torch._foreach_sub(torch._foreach_maximum(a, b), b, alpha=0.5),
    "extrema": lambda a, _: torch._foreach_minimum(torch._foreach_maximum(a, 0.8), [1.0, 1.2, 1.3]),
    "tensor": lambda a, b: torch._foreach_mul(a, b[0][0, 0]),
    "powers": lambda a, b: [torch._foreach_pow(a, b), torch._foreach_pow(2.0, a)],
    "lerp": lambda a, b: [torch._foreach_lerp(a, b, 0.25), torch._foreach_lerp(a, b, b)],
    "pointwise": lambda a, b: torch._foreach_addcdiv(torch._foreach_addcmul(a, b, b, value=2.0), a, b, [1.0, 2.0, 3.0]),
    "norm": lambda a, _: torch.stack(torch._foreach_norm(a, 1)),
    "fresh": lambda a, b: [torch._foreach_clamp_min(a, 1.0), torch._foreach_exp(b)],
}


@pytest.mark.parametrize("name", CALLS)
def test_lists_are_computed_one_by_one_as_eager_computes_them(name: str) -> None:
    a, b = lists()
    graph = make_fx(CALLS[name], decomposition_table=foreach.foreach_decompositions())(a, b)
    assert not [node for node in graph.graph.nodes if "_foreach" in str(node.target)]
    torch.testing.assert_close(graph(a, b), CALLS[name](a, b))


def adam(parameters: list[Tensor], gradients: list[Tensor], means: list[Tensor], squares: list[Tensor]) -> None:
    torch._foreach_lerp_(means, gradients, 0.1)
    torch._foreach_mul_(squares, 0.99)
    torch._foreach_addcmul_(squares, gradients, gradients, 0.01)
    roots = torch._foreach_sqrt(squares)
    torch._foreach_add_(roots, 1e-8)
    torch._foreach_addcdiv_(parameters, means, roots, -1e-3)


def test_an_optimizer_step_is_a_kernel_a_tensor_and_one_launch(compiled: Compiler) -> None:
    ours = [[torch.rand(n, 3) for n in (2, 4, 5)] for _ in range(4)]
    wanted = [[tensor.clone() for tensor in some] for some in ours]
    compiled(adam)(*ours)
    adam(*wanted)
    torch.testing.assert_close(ours, wanted)
    ((schedule,),) = [run.record.schedules for run in compiled.runs]
    assert schedule.library_ops == ()
    assert (schedule.summary()["kernels"], schedule.launches) == (len(ours[0]), 1)


@pytest.mark.slow
def test_small_lists_of_changing_sizes_stay_library_calls(compiled: Compiler) -> None:
    step = compiled(adam, dynamic=True)
    for n in (3, 4):
        ours = [[torch.rand(n, 3), torch.rand(n + 1, 3)] for _ in range(4)]
        wanted = [[tensor.clone() for tensor in some] for some in ours]
        step(*ours)
        adam(*wanted)
        torch.testing.assert_close(ours, wanted)
    schedules = [schedule for run in compiled.runs for schedule in run.record.schedules]
    assert schedules
    assert all("_foreach" in name for schedule in schedules for name in schedule.library_ops)
