"""Matmuls in one library call: with an epilogue (bias, activation), or in float32 without TF32."""

from __future__ import annotations

import torch

aten = torch.ops.aten


def addmm_activation(
    bias: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, gelu: bool, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return GELU (by tanh) or ReLU of x @ weight + bias, rounded once where cuBLASLt computes it."""
    if x.is_cuda:
        if out is None:
            return aten._addmm_activation(bias, x, weight, use_gelu=gelu)  # noqa: SLF001 - the name of an operator
        return aten._addmm_activation.out(bias, x, weight, use_gelu=gelu, out=out)  # noqa: SLF001
    value = aten.addmm(bias, x, weight)  # there, GELU would be by erf
    value = aten.gelu(value, approximate="tanh") if gelu else aten.relu(value)
    return value if out is None else out.copy_(value)


def exact_bmm(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return a @ b for float32 matrices, shapes (B, M, K) and (B, K, N), without TF32."""
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    if before == "ieee":
        return torch.bmm(a, b, out=out)
    settings.fp32_precision = "ieee"
    try:
        return torch.bmm(a, b, out=out)
    finally:
        settings.fp32_precision = before
