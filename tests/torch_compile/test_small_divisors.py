"""Linear attention that divides by sums near zero: one token's gradient is then thousands of times the others'."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

BATCH, HEADS, WIDTH, SIDE = 2, 4, 16, 5


def attention(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Images (N, heads * 3 * width, H, W) of queries, keys and values; computed in ``dtype``, as EfficientViT does."""
    q, k, v = x.reshape(BATCH, HEADS, 3 * WIDTH, -1).transpose(-1, -2).chunk(3, dim=-1)
    q, k, v = F.relu(q).to(dtype), F.relu(k).to(dtype), F.pad(v, (0, 1), value=1.0).to(dtype)
    out = q @ (k.transpose(-1, -2) @ v)
    return (out[..., :-1] / (out[..., -1:] + 1e-15)).to(x.dtype).transpose(-1, -2).reshape(BATCH, -1, SIDE, SIDE)


def gradient(function: Callable[[Tensor, torch.dtype], Tensor], x: Tensor, seen: Tensor, dtype: torch.dtype) -> Tensor:
    x = x.detach().clone().requires_grad_()
    function(x, dtype).backward(seen)
    assert x.grad is not None
    return x.grad.double()


def test_gradients_of_sums_near_zero_are_as_exact_as_in_eager_execution() -> None:
    torch.manual_seed(0)
    x = torch.randn(BATCH, HEADS * 3 * WIDTH, SIDE, SIDE)
    queries = x.view(BATCH, HEADS, 3 * WIDTH, -1)[:, :, :WIDTH]
    small = torch.where(torch.rand_like(queries) < 0.2, queries.abs() * 10 ** (-6 * torch.rand_like(queries)), -1.0)
    queries.copy_(torch.where(torch.rand(BATCH, HEADS, 1, SIDE * SIDE) < 0.3, small, queries))
    x = x.bfloat16().to(memory_format=torch.channels_last)
    seen = torch.randn(BATCH, HEADS * WIDTH, SIDE, SIDE).bfloat16()
    exact = gradient(attention, x.double(), seen.double(), torch.float64)
    eager = gradient(attention, x, seen, torch.float32)
    compiled = torch.compile(attention, backend="optfuse", options={"time_limit": 5, "workers": 1, "strict": True})
    found = gradient(compiled, x, seen, torch.float32)
    assert exact.abs().max() > 1_000 * exact.abs().median()
    assert (found - exact).norm() <= 1.1 * (eager - exact).norm()
    assert torch.allclose(found, exact, rtol=2e-2, atol=1e-2)
