"""Matmul with an epilogue (bias, activation) in one library call."""

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
