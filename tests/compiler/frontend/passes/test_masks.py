"""Masks that repeat along the batch are computed once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from optfuse.compiler.frontend.tracing.inference import capture
from optfuse.compiler.frontend.tracing.trace import trace
from optfuse.compiler.frontend.tracing.training import capture_training
from tests.compiler.frontend.running import capture_and_compare
from tests.oracle.judging import check

B, H, L = 3, 2, 5
SDPA = torch.ops.aten.scaled_dot_product_attention.default


class Attention(nn.Module):
    """Attention under a mask that ``make`` computes of a learned bias, (1, H, L, L), and of who may be seen, (L, L)."""

    def __init__(self, make: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.make = make
        self.bias = nn.Parameter(torch.randn(1, H, L, L))

    def forward(self, x: Tensor) -> Tensor:
        seen = torch.arange(L)[:, None] >= torch.arange(L)
        return F.scaled_dot_product_attention(x, x.sin(), x, attn_mask=self.make(self.bias, seen, x))


def masked(bias: Tensor, seen: Tensor, x: Tensor) -> Tensor:
    return torch.where(seen.expand(len(x), 1, L, L), bias, -1e9).contiguous()


def added(bias: Tensor, seen: Tensor, x: Tensor) -> Tensor:
    return bias.tanh() + torch.where(seen, 0.0, -1e9).expand(len(x), 1, L, L).to(x.dtype)


def varied(bias: Tensor, seen: Tensor, x: Tensor) -> Tensor:
    return bias + x[:, :, :, :1]


def written(bias: Tensor, seen: Tensor, x: Tensor) -> Tensor:
    mask = bias.detach() + torch.where(seen, 0.0, -1e9).expand(len(x), 1, L, L)
    mask[1].zero_()
    return mask


def reversed_batches(bias: Tensor, seen: Tensor, x: Tensor) -> Tensor:
    return (bias * x[:, :1, :1, :1]).flip(0)


def mask_of(make: Callable[..., Tensor]) -> torch.fx.Node:
    program = trace(Attention(make), (torch.randn(B, H, L, L),), None, "case").program
    (call,) = program.graph_module.graph.find_nodes(op="call_function", target=SDPA)
    return call.kwargs.get("attn_mask", call.args[3] if len(call.args) > 3 else None)


@pytest.mark.parametrize("make", [masked, added])
def test_a_mask_that_repeats_is_of_one_batch(make: Callable[..., Tensor]) -> None:
    assert mask_of(make).meta["val"].shape == (1, H, L, L)
    capture_and_compare(Attention(make), (torch.randn(B, H, L, L),))


@pytest.mark.spread(3)
@pytest.mark.parametrize("make", [varied, written, reversed_batches])
def test_a_mask_that_varies_stays(make: Callable[..., Tensor]) -> None:
    assert mask_of(make).meta["val"].shape == (B, H, L, L)
    capture_and_compare(Attention(make), (torch.randn(B, H, L, L),))


def test_nothing_of_all_batches_is_left() -> None:
    model, x = Attention(masked), torch.randn(B, H, L, L)
    forward, backward = capture_training(model, (x,))
    for captured in (capture(model, (x,)), forward, backward):
        made = [n.meta.get("val") for n in captured.graph.graph.nodes if "where" in n.name]
        assert all(value.shape[0] == 1 for value in made if value.dim() == 4)


@pytest.mark.spread(2)
@pytest.mark.parametrize("train", [False, True])
def test_emitted_programs(train: bool) -> None:
    model = Attention(masked).bfloat16()
    check(model, torch.randn(B, H, L, L, dtype=torch.bfloat16), train=train)
