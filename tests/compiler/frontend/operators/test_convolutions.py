"""Convolutions that only scale channels: products that loops take, with eager's results and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import optfuse
from optfuse.compiler.frontend.tracing.inference import capture
from optfuse.compiler.frontend.tracing.training import capture_training
from tests.compiler.frontend.running import assert_gradients_near_eagers, targets
from tests.oracle.judging import OPTIONS

LIBRARY = ("aten.convolution.default", "aten.convolution_backward.default")
BF16 = torch.bfloat16
CHANNELS = 6
KINDS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def net(rank: int, **options: Any) -> nn.Module:
    """A convolution of single pixels between activations, one group a channel unless told otherwise."""
    torch.manual_seed(0)
    wanted = {"kernel_size": 1, "groups": CHANNELS, **options}
    return nn.Sequential(nn.SiLU(), KINDS[rank - 1](CHANNELS, CHANNELS, **wanted), nn.GELU())


def images(rank: int) -> Tensor:
    return torch.randn(2, CHANNELS, *(7, 9, 4)[:rank], generator=torch.Generator().manual_seed(1))


def calls(*graphs: Any) -> int:
    """How many convolutions, and gradients of one, graphs call."""
    return sum(count for graph in graphs for name, count in targets(graph).items() if name in LIBRARY)


#: Whether there is a bias, and the dtype; every other case is quick with the first, the others with the second.
FORMS = {
    "bias, bf16": (True, BF16),
    "no bias, f32": (False, torch.float32),
    "bias, f32": (True, torch.float32),
    "no bias, bf16": (False, BF16),
}


@pytest.mark.parametrize(
    ("rank", "stride", "bias", "dtype"),
    [
        pytest.param(
            rank, stride, *form, id=f"{rank}-{stride}-{name}",
            marks=() if number == (rank + stride) % 2 else pytest.mark.slow,
        )
        for rank in (1, 2, 3)
        for stride in (1, 2, 3)
        for number, (name, form) in enumerate(FORMS.items())
    ],
)  # fmt: skip
def test_products_of_channels(rank: int, stride: int, dtype: torch.dtype, *, bias: bool) -> None:
    model, x = net(rank, stride=stride, bias=bias).to(dtype), images(rank).to(dtype).requires_grad_()
    assert calls(*capture_training(model, (x,))) == 0
    assert_gradients_near_eagers(model, x, share=1e-2 if dtype == BF16 else 1e-6, options=OPTIONS)


def test_channels_last_stay_so() -> None:
    x = images(2).to(memory_format=torch.channels_last).requires_grad_()
    model = net(2, stride=2)
    fast = optfuse.optimize(model, (x,), train=True, options=OPTIONS).compile()
    (gradient,) = torch.autograd.grad(fast(x).square().mean(), x)
    for found, eager in ((fast(x), model(x)), (gradient, x)):
        assert found.stride() == eager.stride()


@pytest.mark.parametrize("options", [{"padding": 1}, {"groups": 3}, {"kernel_size": 2}], ids=str)
def test_others_stay_convolutions(options: dict[str, Any]) -> None:
    assert any(
        "conv" in name or "depthwise" in name for name in targets(capture(net(2, **options), (images(2),), name="m"))
    )


def test_a_range_of_sizes_has_one_graph() -> None:
    model = net(2, stride=2)
    fast = torch.compile(model, backend="optfuse", dynamic=True)
    before = len(optfuse.compiled_graphs())
    for size in (7, 12, 31):
        x = torch.randn(3, CHANNELS, size, size + 2, requires_grad=True)
        results = [(y, *torch.autograd.grad(y.square().mean(), [x, *model.parameters()])) for y in (fast(x), model(x))]
        for ours, eagers in zip(*results, strict=True):
            torch.testing.assert_close(ours, eagers)
    assert len(optfuse.compiled_graphs()) == before + 2
