"""Library calls with what surrounds them: what torch expects of operators, and what they return on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from optfuse.compiler.ops import registered
from optfuse.compiler.ops.matmul import addmm_activation

OPS = torch.ops.optfuse
IMAGES, KERNEL, CHANNEL = torch.randn(2, 3, 6, 5), torch.randn(4, 3, 3, 3), torch.rand(4) + 0.5
OUT = torch.randn(2, 4, 6, 5)

CALLS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "convolution": (OPS.convolution_relu.default, (IMAGES, KERNEL, CHANNEL, None, [1, 1], [1, 1], [1, 1])),
    "with residual": (OPS.convolution_relu.default, (IMAGES, KERNEL, CHANNEL, OUT, [1, 1], [1, 1], [1, 1])),
    "weight": (OPS.norm_weight.default, (KERNEL, CHANNEL, CHANNEL, 1e-5)),
    "weight of no weight": (OPS.norm_weight.default, (KERNEL, None, CHANNEL, 1e-5)),
    "shift": (OPS.norm_shift.default, (KERNEL, CHANNEL, CHANNEL, CHANNEL, CHANNEL, 1e-5, CHANNEL, CHANNEL)),
    "shift of little": (OPS.norm_shift.default, (KERNEL, None, None, CHANNEL, CHANNEL, 1e-5, None, None)),
    "max-pool": (OPS.max_pool.default, (IMAGES, [3, 2], [2, 2], [1, 0], True)),
    "max-pool of blocks": (OPS.max_pool.default, (torch.randn(2, 3, 4, 6, 5), [2, 3, 2], [1, 2, 2], [1, 1, 0], True)),
    "relu": (OPS.addmm_activation.default, (CHANNEL, torch.randn(3, 5), torch.randn(5, 4), False)),
    "gelu": (OPS.addmm_activation.default, (CHANNEL, torch.randn(3, 5), torch.randn(5, 4), True)),
}


@pytest.mark.parametrize("name", CALLS)
def test_registration(name: str) -> None:
    operator, arguments = CALLS[name]
    torch.library.opcheck(operator, arguments, test_utils=["test_faketensor", "test_schema"])


def test_batch_norm_in_weights_and_bias() -> None:
    inner, mean, variance, weight, bias = (torch.rand(4) + 0.5 for _ in range(5))
    normed = F.batch_norm(F.conv2d(IMAGES, KERNEL, inner, padding=1), mean, variance, weight, bias, eps=1e-3)
    kernel = registered.norm_weight(KERNEL, weight, variance, 1e-3)
    shift = registered.norm_shift(KERNEL, weight, bias, mean, variance, 1e-3, inner, CHANNEL)
    ours = registered.convolution_relu(IMAGES, kernel, shift, OUT, [1, 1], [1, 1], [1, 1])
    torch.testing.assert_close(ours, F.relu(normed + OUT + CHANNEL[:, None, None]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("gelu", [False, True])
def test_activations_into_given_memory(gelu: bool) -> None:
    bias, x, weight = CHANNEL, torch.randn(3, 5), torch.randn(5, 4)
    value = torch.addmm(bias, x, weight)
    expected = F.gelu(value, approximate="tanh") if gelu else F.relu(value)
    out = torch.empty(3, 4)
    assert addmm_activation(bias, x, weight, gelu, out=out) is out
    torch.testing.assert_close(out, expected)
