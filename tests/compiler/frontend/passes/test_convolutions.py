"""Convolutions in other forms: which are rewritten, and that results, gradients and layouts stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import optfuse
from optfuse.compiler.frontend import Captured, capture, capture_training
from tests.compiler.frontend.running import call
from tests.oracle.judging import OPTIONS

BF16 = torch.bfloat16


class Layer(nn.Module):
    """A convolution, and something before it so that gradients of images are wanted."""

    def __init__(self, convolution: nn.Conv2d, before: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.convolution, self.before = convolution, before
        self.scale = nn.Parameter(torch.ones(convolution.in_channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale if self.before is None else self.before(x)
        return self.convolution(x)


def same(x: Tensor) -> Tensor:
    return x


def padded(x: Tensor) -> Tensor:
    return F.pad(x, (0, 1, 0, 1))


CASES: dict[str, tuple[Callable[[], nn.Module], list[str], list[str]]] = {
    "first layer": (
        lambda: Layer(nn.Conv2d(3, 8, 7, 2, 3), same),
        ["to_depth", "convolution"],
        ["convolution_backward", "from_depth", "to_depth"],
    ),
    "first layer, padded before": (
        lambda: Layer(nn.Conv2d(3, 8, 3, 2), padded),
        ["to_depth", "convolution"],
        ["convolution_backward", "from_depth", "to_depth"],
    ),
    "images with gradients": (
        lambda: Layer(nn.Conv2d(3, 8, 3, 2, 1)),
        ["to_depth", "convolution"],
        ["convolution_backward"],
    ),
    "few channels": (
        lambda: Layer(nn.Conv2d(3, 8, 3, padding=1), same),
        ["convolution"],
        ["convolution_backward"],
    ),
    "depthwise": (
        lambda: Layer(nn.Conv2d(8, 8, 3, padding=1, groups=8)),
        ["convolution"],
        ["convolution", "depthwise_weights", "flip"],
    ),
    "depthwise, dilated": (
        lambda: Layer(nn.Conv2d(8, 8, (3, 5), padding=(0, 3), dilation=2, groups=8)),
        ["depthwise"],
        ["depthwise", "depthwise_weights", "flip"],
    ),
    "depthwise with steps": (
        lambda: Layer(nn.Conv2d(8, 8, 3, 2, 1, groups=8)),
        ["convolution"],
        ["depthwise_images", "depthwise_weights"],
    ),
    "padded more than turned": (
        lambda: Layer(nn.Conv2d(8, 8, 1, padding=1, groups=8)),
        ["depthwise"],
        ["depthwise_images", "depthwise_weights"],
    ),
}
OF_INTEREST = {
    *("to_depth", "from_depth", "convolution", "convolution_backward", "flip"),
    *("depthwise", "depthwise_images", "depthwise_weights"),
}


def targets(captured: Captured) -> list[str]:
    names = [str(node.target).split(".") for node in captured.graph.graph.nodes if node.op == "call_function"]
    return [parts[1] for parts in names if len(parts) == 3 and parts[1] in OF_INTEREST]


def images(model: Any) -> Tensor:
    return torch.randn(2, model.convolution.in_channels, 8, 16, generator=torch.Generator().manual_seed(1)).to(BF16)


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", CASES)
def test_inference(name: str) -> None:
    torch.manual_seed(0)
    model = CASES[name][0]().to(BF16)
    x = images(model)
    captured = capture(model, (x,), name="model")
    assert sorted(set(targets(captured))) == sorted(set(CASES[name][1]))
    with torch.no_grad():
        ours, expected = call(captured, model, (x,), {}), model(x)
    torch.testing.assert_close(ours, expected, rtol=0.02, atol=0.02)


@pytest.mark.spread(3, 1)
@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    torch.manual_seed(0)
    model = CASES[name][0]().to(BF16)
    x = images(model)
    _, backward = capture_training(model, (x,))
    assert sorted(set(targets(backward))) == sorted(set(CASES[name][2]))


def test_few_channels_get_zeros_beside_them() -> None:
    model = CASES["few channels"][0]().to(BF16)
    captured, _ = capture_training(model, (images(model),))
    (node,) = captured.graph.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default)
    assert [value.meta["val"].shape[1] for value in node.args[:2]] == [8, 8]


@pytest.mark.parametrize("name", ["first layer, padded before", "few channels", "depthwise, dilated"])
def test_programs(name: str) -> None:
    """Kernels, layouts and gradients against eager."""
    torch.manual_seed(0)
    model = CASES[name][0]().to(BF16)
    x = images(model)
    step = optfuse.optimize(model, (x,), train=True, options=OPTIONS).compile()
    out = step(x)
    expected = model(x)
    assert out.stride() == expected.stride()
    torch.testing.assert_close(out, expected, rtol=0.02, atol=0.02)
    weight = torch.randn_like(expected)
    ours = torch.autograd.grad((out * weight).sum(), list(model.convolution.parameters()))
    theirs = torch.autograd.grad((expected * weight).sum(), list(model.convolution.parameters()))
    for a, b in zip(ours, theirs, strict=True):
        assert [s for s, n in zip(a.stride(), a.shape, strict=True) if n > 1] == [
            s for s, n in zip(b.stride(), b.shape, strict=True) if n > 1
        ]
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.2)


def test_not_in_float32() -> None:
    model = Layer(nn.Conv2d(3, 8, 7, 2, 3))
    assert targets(capture(model, (torch.randn(1, 3, 8, 8),), name="model")) == ["convolution"]


def test_with_relu() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3), nn.BatchNorm2d(8), nn.ReLU()).eval().to(BF16)
    x = torch.randn(2, 3, 16, 14).to(BF16)
    captured = capture(model, (x,), name="model")
    assert targets(captured) == ["to_depth", "to_depth"]
    with torch.no_grad():
        torch.testing.assert_close(call(captured, model, (x,), {}), model(x), rtol=0.02, atol=0.02)
