"""Convolution with an epilogue (bias, residual, ReLU) in one library call, and batch norm folded into its weights."""

from __future__ import annotations

import torch

aten = torch.ops.aten


def convolution_relu(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> torch.Tensor:
    """Return relu(convolution(x) + bias + residual), rounded once where cuDNN computes it. One group."""
    if x.is_cuda and torch.backends.cudnn.enabled and torch.backends.cudnn.is_available():
        if residual is None:
            return aten.cudnn_convolution_relu(x, weight, bias, stride, padding, dilation, 1)
        return aten.cudnn_convolution_add_relu(x, weight, residual, 1.0, bias, stride, padding, dilation, 1)
    out = aten.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), 1)
    return aten.relu(out if residual is None else out + residual)


def norm_scale(weight: torch.Tensor | None, variance: torch.Tensor, eps: float) -> torch.Tensor:
    """What batch norm multiplies each channel by, in float32."""
    scale = torch.rsqrt(variance.float() + eps)
    return scale if weight is None else scale * weight.float()


def norm_weight(kernel: torch.Tensor, weight: torch.Tensor | None, variance: torch.Tensor, eps: float) -> torch.Tensor:
    """A convolution's weights followed by batch norm's, in the dtype of the former."""
    scale = norm_scale(weight, variance, eps)
    return (kernel.float() * scale.view(-1, *[1] * (kernel.dim() - 1))).to(kernel.dtype)


def norm_shift(
    kernel: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    variance: torch.Tensor,
    eps: float,
    inner: torch.Tensor | None,
    beside: torch.Tensor | None,
) -> torch.Tensor:
    """The bias that a convolution with ``norm_weight`` needs: ``inner`` is its own, ``beside`` is added to the result.

    Of ``kernel`` only the dtype counts.
    """
    shift = (-mean.float() if inner is None else inner.float() - mean.float()) * norm_scale(weight, variance, eps)
    shift = shift if bias is None else shift + bias.float()
    return (shift if beside is None else shift + beside.float()).to(kernel.dtype)
