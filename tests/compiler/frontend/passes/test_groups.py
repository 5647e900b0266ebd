"""Grouped convolutions in wider groups: which are rewritten, and that results, gradients and layouts stay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import optfuse
from optfuse.compiler.frontend import Captured, capture, capture_training
from tests.compiler.frontend.running import call
from tests.oracle.judging import OPTIONS

BF16 = torch.bfloat16
CONVOLUTION, GRADIENT = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default


def model(groups: int, width: int, *, window: int = 3, stride: int = 1, bias: bool = False) -> nn.Module:
    """A grouped convolution between ones that are not, with batch norm and an activation on either side."""
    torch.manual_seed(0)
    wide = groups * width
    grouped = nn.Conv2d(wide, wide, window, stride, window // 2, groups=groups, bias=bias)
    before = (nn.Conv2d(8, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU())
    return nn.Sequential(*before, grouped, nn.SiLU(), nn.Conv2d(wide, 8, 1)).to(BF16)


def images() -> Tensor:
    return torch.randn(2, 8, 10, 10, generator=torch.Generator().manual_seed(1)).to(BF16)


def widths(captured: Captured, target: Any) -> list[int]:
    """The channels in a group that a graph's grouped convolutions, or gradients of them, take."""
    place = 2 if target is GRADIENT else 1
    found = captured.graph.graph.find_nodes(op="call_function", target=target)
    return [int(node.args[place].meta["val"].shape[1]) for node in found if node.args[8 + place - 1] > 1]


@pytest.mark.parametrize(("width", "expected"), [(1, 1), (2, 2), (3, 4), (4, 4), (24, 32), (80, 128), (128, 128)])
def test_width(width: int, expected: int) -> None:
    captured = capture(model(4 if width > 16 else 40, width).eval(), (images(),), name="model")
    assert widths(captured, CONVOLUTION) == [expected]


@pytest.mark.parametrize("width", [24, 40, 64])
def test_gradients(width: int) -> None:
    """At 64 channels the gradient of the images is a convolution."""
    _, backward = capture_training(model(4, width), (images(),))
    expected = 32 if width == 24 else 64
    assert widths(backward, GRADIENT) == [expected]
    assert widths(backward, CONVOLUTION) == [expected] * (expected == 64)


def test_gradients_with_steps_stay_gradients() -> None:
    _, backward = capture_training(model(4, 40, stride=2), (images(),))
    assert (widths(backward, GRADIENT), widths(backward, CONVOLUTION)) == ([64], [])


@pytest.mark.parametrize("bias", [False, True])
def test_wide_groups_are_convolutions_of_their_own(bias: bool) -> None:
    """Forward and backward: no grouped convolution is left, and each group has one."""
    net = model(2, 160, bias=bias)
    captured = capture(net.eval(), (images(),), name="model")
    assert (widths(captured, CONVOLUTION), shapes(captured, CONVOLUTION, 1).count(160)) == ([], 2)
    _, backward = capture_training(net.train(), (images(),))
    assert (widths(backward, GRADIENT), shapes(backward, GRADIENT, 2).count(160)) == ([], 2)


def shapes(captured: Captured, target: Any, place: int) -> list[int]:
    """The channels that the weights of a graph's convolutions, or gradients of them, take."""
    found = captured.graph.graph.find_nodes(op="call_function", target=target)
    return [int(node.args[place].meta["val"].shape[1]) for node in found]


def test_unequal_sides_and_float32_stay() -> None:
    unequal = nn.Conv2d(320, 480, 3, groups=8).to(BF16)
    assert widths(capture(unequal, (torch.randn(1, 320, 8, 8).to(BF16),), name="model"), CONVOLUTION) == [40]
    single = capture(model(4, 24).float().eval(), (images().float(),), name="model")
    assert widths(single, CONVOLUTION) == [24]


def test_inference() -> None:
    net = model(4, 24, bias=True).eval()
    captured = capture(net, (images(),), name="model")
    with torch.no_grad():
        ours, expected = call(captured, net, (images(),), {}), net(images())
    torch.testing.assert_close(ours, expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    "options",
    [
        {"groups": 16, "width": 5, "bias": True},
        {"width": 40, "stride": 2},
        pytest.param({"groups": 2, "width": 132, "bias": True}, marks=pytest.mark.slow),
        pytest.param({"width": 40, "bias": True}, marks=pytest.mark.slow),
        pytest.param({"width": 12, "window": 1}, marks=pytest.mark.slow),
    ],
)
def test_programs(options: dict[str, Any]) -> None:
    """Kernels, layouts and gradients, no further from float64 than eager's in bfloat16."""
    net = model(**{"groups": 4, **options})
    x = images().requires_grad_()
    wanted = [x, *net.parameters()]
    step = optfuse.optimize(net, (x,), train=True, options=OPTIONS).compile()
    seed = torch.randn(net(x).shape, generator=torch.Generator().manual_seed(2))
    out, eager = step(x), net(x)
    ours, theirs = (torch.autograd.grad((y.float() * seed).sum(), wanted) for y in (out, eager))
    exact_net, exact_x = net.double(), x.detach().double().requires_grad_()
    exact = torch.autograd.grad((exact_net(exact_x) * seed).sum(), [exact_x, *exact_net.parameters()])
    assert out.stride() == eager.stride()
    for a, b, c in zip(ours, theirs, exact, strict=True):
        assert _steps(a) == _steps(b)
        assert _distance(a, c) <= 1.5 * _distance(b, c) + 0.005


def _steps(x: Tensor) -> list[int]:
    return [step for step, size in zip(x.stride(), x.shape, strict=True) if size > 1]


def _distance(x: Tensor, exact: Tensor) -> float:
    return float((x.double() - exact).norm() / exact.norm())
