"""Values that expand a few elements are not saved: the backward graph recomputes them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from optfuse.compiler.frontend.aot_autograd.aot import as_traced
from optfuse.compiler.frontend.tracing.training import capture_training, train_module

IMAGES, WINDOWS = 64, 4


class Windows(nn.Module):
    """A bias and each window's mask, added and repeated for every image, in a product."""

    def __init__(self, images: int = IMAGES) -> None:
        super().__init__()
        self.images = images
        self.bias = nn.Parameter(torch.randn(32, 48))
        self.register_buffer("mask", torch.randn(WINDOWS, 32, 48))

    def forward(self, x: Tensor) -> Tensor:
        spread = (self.bias + self.mask).expand(self.images, WINDOWS, 32, 48).reshape(-1, 32, 48)
        return torch.bmm(x, spread)


class Written(Windows):
    """The mask is another one after the forward pass."""

    def forward(self, x: Tensor) -> Tensor:
        result = super().forward(x)
        self.mask.add_(1)
        return result


def rows(images: int) -> Tensor:
    return torch.randn(images * WINDOWS, 16, 32).requires_grad_()


X = rows(IMAGES).detach()


def kept_bytes(images: int) -> int:
    _, backward = capture_training(Windows(images), (rows(images),))
    return max(node.meta["val"].nbytes for node in backward.placeholders if node.meta["val"].shape[1:] != (16, 48))


def test_small_values_are_kept_in_place_of_a_large_one() -> None:
    small = X.nbytes  # what the product needs for the other gradient
    assert kept_bytes(IMAGES) == max(small, WINDOWS * 32 * 48 * 4)


def test_what_is_not_large_is_kept_itself() -> None:
    assert kept_bytes(8) == 8 * WINDOWS * 32 * 48 * 4


def test_zeros_that_both_graphs_start_from_are_not_kept() -> None:
    class Messages(nn.Module):
        def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
            messages = (x * 2).index_select(0, source)
            return x.new_zeros(9, 8).scatter_add_(0, target[:, None].expand_as(messages), messages)

    source, target = torch.randint(9, (2, 40))
    _, backward = capture_training(Messages(), (torch.randn(9, 8).requires_grad_(), source, target))
    assert [node.meta["val"].shape for node in backward.placeholders] == [(40,), (40,), (9, 8)]


@pytest.mark.spread(2)
@pytest.mark.parametrize("kind", [Windows, Written])
def test_gradients_are_those_of_eager_execution(kind: type[Windows]) -> None:
    torch.manual_seed(0)
    model, x = kind(), X.clone().requires_grad_()
    before = model.mask.clone()
    expected = torch.autograd.grad(model(x).square().sum(), [model.bias, x])
    model.mask.copy_(before)
    step = train_module(model, (x,), {}, as_traced)
    got = torch.autograd.grad(step(x).square().sum(), [model.bias, x])
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-3)
    assert torch.equal(model.mask, before + (kind is Written))
