"""Norms over groups of channels, of images whose channels lie last in memory: the results, and how they are read."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import optfuse

GROUPS, CHANNELS = 4, 16


class Normed(nn.Module):
    """A convolution and a group norm; in half precision the convolution's result has its channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, CHANNELS, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(GROUPS, CHANNELS)
        with torch.no_grad():
            self.norm.weight.uniform_(0.5, 1.5)
            self.norm.bias.uniform_(-1.0, 1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The norm of the activated convolution."""
        return self.norm(torch.relu(self.conv(x)))


@pytest.fixture
def image() -> torch.Tensor:
    """An image of which a group of channels has more points than a kernel holds."""
    return torch.randn(1, 8, 80, 64, generator=torch.Generator().manual_seed(0)).bfloat16()


@torch.no_grad()
def test_results_are_as_exact_as_in_eager_execution(image) -> None:
    torch.manual_seed(0)
    model = Normed().bfloat16()
    ours, eager = torch.compile(model, backend="optfuse")(image), model(image)
    exact = model.float()(image.float())
    assert float((ours - exact).norm()) <= 1.1 * float((eager - exact).norm())


def test_gradients_are_as_exact_as_in_eager_execution(image) -> None:
    torch.manual_seed(0)
    model = Normed().bfloat16()
    exact = Normed()
    exact.load_state_dict({name: value.float() for name, value in model.state_dict().items()})
    weights = torch.randn_like(exact(image.float()))
    grads = []
    for each, x in ((exact, image.float()), (model, image), (torch.compile(model, backend="optfuse"), image)):
        each.zero_grad()
        out = each(x)
        (out.float() * weights).sum().backward()
        grads.append([p.grad.float() for p in each.parameters()])
        for p in each.parameters():
            p.grad = None
    for name, truth, eager, ours in zip((n for n, _ in exact.named_parameters()), *grads, strict=True):
        far = [float((found - truth).norm() / truth.norm()) for found in (eager, ours)]
        assert far[1] <= 1.5 * far[0] + 1e-3, name


def test_neighbouring_channels_are_summed_up_apart(image) -> None:
    """A program for each group would read pieces of 8 bytes; the sums of channels read whole rows."""
    schedule = optfuse.optimize(Normed().bfloat16().eval().requires_grad_(False), (image,))
    partial = next(kernel for kernel in schedule.source.split("@triton.jit") if "var_mean_partial0_ptr" in kernel)
    assert "XBLOCK" in partial
    assert "var_mean_partial" in schedule.report()


def test_a_norm_that_is_written_with_channels_first_has_an_axis_for_each_order(image) -> None:
    schedule = optfuse.optimize(Normed().bfloat16().eval().requires_grad_(False), (image,))
    kernels = schedule.source.split("@triton.jit")
    norm = next(
        kernel for kernel in kernels if "norm_weight_ptr" in kernel.split("):")[0] and "var_mean_0_ptr" in kernel
    )
    head = norm.split("):")[0]
    assert "YBLOCK" in head
    assert "RBLOCK" not in head
