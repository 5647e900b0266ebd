"""Attention on a GPU, by each of the kernels that serve it, against float64."""

# ruff: noqa: SLF001  (the kernels of scaled_dot_product_attention have no public name)

from __future__ import annotations

import pytest
import torch

from optfuse.compiler.ops.attention import attention, attention_backward
from optfuse.compiler.ops.attention_cudnn import attention_backward_own_plan

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

#: (batches, heads, groups, rows, columns, width): short ones, long ones, ragged ones, shared heads.
SIZES = [(64, 3, 3, 49, 49, 32), (4, 4, 4, 128, 136, 64), (4, 4, 4, 100, 77, 64), (4, 4, 2, 128, 72, 40)]


@pytest.mark.parametrize("kind", ["shared", "a mask each", "shared, float32", "fixed"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_masked_attention(sizes: tuple[int, ...], kind: str) -> None:
    """The output and all gradients. One row of the mask leaves nothing to see, and some leave little."""
    batches, heads, groups, rows, columns, width = sizes
    generator = torch.Generator("cuda").manual_seed(0)

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", generator=generator)

    def heads_of(length: int, count: int) -> torch.Tensor:
        return make(batches, length, count, width).bfloat16().transpose(1, 2)

    query, key, value = heads_of(rows, heads), heads_of(columns, groups), heads_of(columns, groups)
    grad = heads_of(rows, heads)
    mask = make(1 if kind.startswith("shared") else batches, heads, rows, columns)
    mask[:, :, 3], mask[:, :, 5, 2:] = -torch.inf, -torch.inf
    mask = mask if kind.endswith("32") else mask.bfloat16()
    options, wanted = (0.0, False, 0.2), kind != "fixed"
    out, lse = attention(query, key, value, mask, *options[1:], True)
    alone = attention(query, key, value, mask, *options[1:], False)[0]
    found, again = (
        attention_backward(laid, query, key, value, mask, out, lse, None, None, *options, wanted)
        for laid in (grad, grad.contiguous())  # torch keeps cuDNN's plans without the layout of a gradient
    )

    exact = [x.double().requires_grad_() for x in (query, key, value, mask)]
    seen = (mask > -torch.inf).any(-1, keepdim=True)
    repeated = [x.repeat_interleave(heads // groups, 1) for x in exact[1:3]]
    scores = exact[0] @ repeated[0].mT * options[2] + exact[3]
    expected = torch.softmax(torch.where(seen, scores, 0.0), -1) * seen @ repeated[1]
    gradients = torch.autograd.grad(expected, exact, grad.double())
    pairs = [(out, expected), (alone, expected), *zip(found, gradients, strict=False)]
    for ours, theirs in [*pairs, *zip(again, gradients, strict=False)]:
        assert ours.shape == theirs.shape
        assert (ours.double() - theirs).norm() < 0.02 * theirs.norm()


@pytest.mark.parametrize("heads_outside", [False, True])
def test_cudnn_gradients_after_another_caller(heads_outside: bool) -> None:
    """One that laid out the gradient of the result otherwise, by whose plan torch would read ours."""

    def make() -> torch.Tensor:
        x = torch.randn(2, 256, 4, 64, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        return x.contiguous() if heads_outside else x

    query, key, value, grad = make(), make(), make(), make()
    bias = torch.randn(2, 1, 256, 256, device="cuda", dtype=torch.bfloat16)
    out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(query, key, value, bias, True, 0.0, False, False)
    seed = torch.zeros((), dtype=torch.int64, device="cuda")
    rest = (query, key, value, out, lse, seed, seed, bias, None, None, 256, 256, 0.0, False)
    other = grad.transpose(1, 2).contiguous().transpose(1, 2) if heads_outside else grad.contiguous()
    torch.ops.aten._scaled_dot_product_cudnn_attention_backward(other, *rest)
    exact = [x.double().requires_grad_() for x in (query, key, value)]
    expected = torch.softmax(exact[0] @ exact[1].mT / 8 + bias, -1) @ exact[2]
    gradients = torch.autograd.grad(expected, exact, grad.double())
    for laid in (grad, other):
        for ours, theirs in zip(attention_backward_own_plan(laid, *rest), gradients, strict=True):
            assert (ours.double() - theirs).norm() < 0.02 * theirs.norm()
