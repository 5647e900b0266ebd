"""Interpolation along one dimension after another is that of eager execution, with its gradient and strides."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import optfuse
from optfuse.compiler.frontend.passes.interpolation import _functional

CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "rows": ((2, 3, 11), {"scale_factor": 2, "mode": "linear"}),
    "images": ((2, 3, 7, 9), {"scale_factor": 2, "mode": "bilinear"}),
    "corners": ((2, 3, 7, 9), {"size": (13, 5), "mode": "bilinear", "align_corners": True}),
    "one row": ((2, 3, 7, 9), {"size": (1, 18), "mode": "bilinear", "align_corners": True}),
    "fraction": ((2, 3, 7, 9), {"scale_factor": (1.7, 0.6), "mode": "bilinear"}),
    "again": ((2, 3, 7, 9), {"scale_factor": 1.7, "mode": "bilinear", "recompute_scale_factor": True}),
    "smaller": ((2, 3, 16, 16), {"size": 6, "mode": "bilinear"}),
    "as it is": ((2, 3, 7, 9), {"size": (7, 9), "mode": "bilinear"}),
    "volumes": ((1, 3, 4, 5, 6), {"scale_factor": 2, "mode": "trilinear"}),
    "smooth": ((2, 3, 16, 16), {"size": 6, "mode": "bilinear", "antialias": True}),
    "nearest": ((2, 3, 7, 9), {"scale_factor": 2}),
}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_numbers_and_strides_of_eager_execution(case: str, last: bool) -> None:
    shape, options = CASES[case]
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    if last and x.dim() == 4:
        x = x.to(memory_format=torch.channels_last)
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    ours, eager = _functional(one, **options), F.interpolate(other, **options)
    assert ours.stride() == eager.stride()
    torch.testing.assert_close(ours, eager)
    weights = torch.randn(eager.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ours.mul(weights).sum().backward()
    eager.mul(weights).sum().backward()
    torch.testing.assert_close(one.grad, other.grad)


class Larger(nn.Module):
    """Images of twice the size, times 2."""

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False) * 2


@pytest.mark.spread(3, 1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_of_torch_compile_adds_nothing_atomically(dtype: torch.dtype) -> None:
    torch.compiler.reset()
    before = len(optfuse.compiled_graphs())
    exact = torch.randn(2, 3, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exact = exact.to(dtype).double().requires_grad_()
    x = exact.detach().to(dtype).requires_grad_()
    result = torch.compile(Larger(), backend="optfuse")(x)
    result.square().sum().backward()
    truth = Larger()(exact)
    truth.square().sum().backward()
    precision = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(result.double(), truth, **precision)
    torch.testing.assert_close(x.grad.double(), exact.grad, **precision)
    forward, backward = optfuse.compiled_graphs()[before:]
    assert not forward.library_calls
    assert not backward.library_calls


def test_a_schedule_computes_it_by_loops() -> None:
    x = torch.randn(2, 3, 6, 8)
    schedule = optfuse.optimize(Larger(), (x,))
    assert not schedule.library_ops
    torch.testing.assert_close(schedule.compile()(x), Larger()(x))
