"""Our attention operators by themselves: what torch expects of an operator, and their seeds."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from optfuse.compiler.ops import attention as functions
from optfuse.compiler.ops import attention_cudnn
from optfuse.compiler.ops.attention import attention, attention_dropout
from optfuse.compiler.ops.attention_memory import attention_bias, attention_mask_memory, attention_padded

OPS = torch.ops.optfuse


def arguments(masked: bool | str, dropout_p: float, keep: bool, rows: int = 5, columns: int = 7) -> tuple[Any, ...]:
    """A call's. ``masked``: whether a mask has batches, or "once", if it has one for all."""

    def make(*shape: int) -> Tensor:
        return torch.randn(shape, requires_grad=keep)

    query, key, value = make(2, 4, rows, 6), make(2, 2, columns, 6), make(2, 2, columns, 3)
    batches = 1 if masked == "once" else 2
    mask = make(4, rows, columns).expand(batches, -1, -1, -1) if masked else None
    options = (not masked, 0.5, keep)
    return (query, key, value, mask, dropout_p, *options, 0) if dropout_p else (query, key, value, mask, *options)


@pytest.mark.parametrize(
    ("masked", "dropout_p", "keep"), list(itertools.product((False, True, "once"), (0.0, 0.5), (False, True)))
)
def test_registration(masked: bool | str, dropout_p: float, keep: bool) -> None:
    checks = ["test_faketensor", "test_schema"] if dropout_p == 0 else ["test_faketensor"]
    operator = OPS.attention_dropout if dropout_p else OPS.attention
    torch.library.opcheck(operator.default, arguments(masked, dropout_p, keep), test_utils=checks)
    if keep:
        call = arguments(masked, dropout_p, keep)
        out, *rest = (x.detach() for x in operator(*call))
        inputs = [x.detach() if isinstance(x, Tensor) else x for x in call[:4]]
        kept = rest if dropout_p else (*rest, None, None)
        options = (dropout_p, not masked, 0.5, bool(masked))
        backward = (torch.ones_like(out), *inputs, out, *kept, *options)
        torch.library.opcheck(OPS.attention_backward.default, backward, test_utils=checks)


@pytest.mark.parametrize("rows", [1, 16, 32, 33])
def test_layouts_at_multiples_of_the_padding(rows: int) -> None:
    torch.library.opcheck(OPS.attention.default, arguments(True, 0.0, True, rows, rows), test_utils=["test_faketensor"])
    OPS.attention(*arguments(True, 0.0, True, rows, rows))[0].sum().backward()


@pytest.mark.parametrize("columns", [1, 7, 16])
def test_padded_rows(columns: int) -> None:
    mask = torch.randn(2, columns, 5).mT.requires_grad_()
    torch.library.opcheck(OPS.padded_rows.default, (mask,), test_utils=["test_faketensor", "test_schema"])
    assert torch.equal(OPS.padded_rows(mask), mask)
    (OPS.padded_rows(mask) * 3).sum().backward()
    assert torch.equal(mask.grad, torch.full_like(mask, 3))


@pytest.mark.spread(2)
@pytest.mark.parametrize("masked", [True, "once"])
def test_gradients_by_finite_differences(masked: bool | str) -> None:
    query, key, value, mask, *rest = arguments(masked, 0.0, True)
    tensors = [x.detach().double().requires_grad_() for x in (query, key, value, mask.contiguous())]
    assert torch.autograd.gradcheck(lambda *inputs: OPS.attention(*inputs, *rest)[0], tensors)


def test_rows_without_keys_are_zero() -> None:
    query, key, value, mask, *rest = arguments(True, 0.3, True)
    mask = mask.detach().masked_fill(torch.arange(5)[:, None] == 2, -torch.inf).requires_grad_()
    out = OPS.attention_dropout(query, key, value, mask, *rest)[0]
    out.sum().backward()
    assert bool((out[:, :, 2] == 0).all())
    for x in (query, key, value, mask):
        assert bool(x.grad.isfinite().all())
    assert bool((query.grad[:, :, 2] == 0).all())


def test_dropout_keeps_its_share() -> None:
    query, key = torch.zeros(2, 3, 64, 8), torch.zeros(2, 3, 100, 8)
    value = torch.ones(2, 3, 100, 1)
    torch.manual_seed(0)
    out = attention_dropout(query, key, value, None, 0.25, False, 1.0, True, 0)[0]
    assert abs(out.mean() - 1) < 0.01  # 38400 draws
    kept = out * 0.75 * 100
    torch.testing.assert_close(kept, kept.round(), rtol=0, atol=1e-3)
    assert not attention_dropout(query, key, value, None, 1.0, False, 1.0, True, 0)[0].any()


@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("columns", [7, 8, 16])
@pytest.mark.parametrize("shape", [(1, 4, 5, -1), (2, 1, 1, -1), (2, 4, 5, 1)])
def test_bias_for_the_gpu_is_aligned(shape: tuple[int, ...], columns: int, permuted: bool) -> None:
    shape = tuple(columns if size == -1 else size for size in shape)
    mask = torch.randn(shape)
    mask = mask.to(memory_format=torch.channels_last) if permuted else mask
    bias = attention_bias(mask.expand(2, 4, 5, columns), torch.zeros(1, dtype=torch.bfloat16))
    assert bias is not None
    assert bias.dtype == torch.bfloat16
    assert bias.stride(-1) == 1
    assert all(step % 8 == 0 for step in bias.stride()[:-1])
    torch.testing.assert_close(bias, mask.expand(2, 4, 5, columns).bfloat16())


def test_heads_for_the_gpu_are_aligned() -> None:
    x = torch.randn(2, 5, 3, 12).transpose(1, 2)
    padded = attention_padded(x)
    assert padded.shape == (2, 3, 5, 16)
    assert not padded[..., 12:].any()
    whole = torch.randn(2, 5, 3, 16).transpose(1, 2)
    assert attention_padded(whole) is whole
    assert attention_padded(torch.randn(3, 2, 3, 5, 8 + 1)[..., 1:][0]).stride(2) % 8 == 0


@pytest.mark.parametrize("kernel", ["flash", "efficient"])
@pytest.mark.parametrize("masked", [False, True, "once"])
@pytest.mark.parametrize("dropout_p", [0.0, 0.1])
@pytest.mark.parametrize("sizes", [(5, 7, 12, 12, 4), (32, 48, 16, 16, 2), (33, 49, 32, 24, 4)])
def test_calls_of_gpu_kernels_have_the_promised_results(
    kernel: str, masked: bool | str, dropout_p: float, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On meta tensors: the kernels' own shape functions against those of our operators."""
    rows, columns, width, value_width, groups = sizes
    if kernel == "flash" and (masked or dropout_p or width != value_width):
        pytest.skip("no call for this kernel")
    monkeypatch.setattr(functions, "attention_kernel", lambda *_: kernel)
    monkeypatch.setattr(functions, "attention_by_cudnn", lambda *_: sizes[0] == 32)
    monkeypatch.setattr(attention_cudnn, "attention_mask_sum", lambda *args: attention_mask_memory(args[4]))
    monkeypatch.setattr(Tensor, "data_ptr", lambda _: 0)

    def make(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device="meta")

    query = make(2, rows, 4, width).transpose(1, 2)
    tensors = (query, make(2, groups, columns, width), make(2, groups, columns, value_width))
    mask = make(4, rows, columns).expand(1 if masked == "once" else 2, -1, -1, -1) if masked else None
    rest = (dropout_p, not masked, 0.5)
    if dropout_p:
        results = functions.attention_dropout(*tensors, mask, *rest, True, 0)
        same_layout(results, torch.ops.optfuse.attention_dropout(*tensors, mask, *rest, True, 0))
    else:
        results = functions.attention(*tensors, mask, *rest[1:], True)
        promised = torch.ops.optfuse.attention(*tensors, mask, *rest[1:], True)
        same_layout(results, promised)
        assert {x.device.type for x in promised} == {"meta"}  # nothing of the host's, which no CUDA graph can hold
    out, lse, *rng = results
    backward = (
        torch.empty_like(out),
        *tensors,
        mask,
        out,
        lse,
        *(rng if dropout_p else (None, None)),
        *rest,
        bool(masked),
    )
    same_layout(functions.attention_backward(*backward), torch.ops.optfuse.attention_backward(*backward))


@pytest.mark.parametrize("heads_outside", [False, True])
def test_cudnn_plans_are_ours_and_read_one_layout(heads_outside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient and the result lie as the queries do, whatever layout they come in."""
    calls = list[tuple[Any, ...]]()
    kernels = SimpleNamespace(_scaled_dot_product_cudnn_attention_backward=lambda *args, **_: calls.append(args))
    monkeypatch.setattr(attention_cudnn, "aten", kernels)
    inside, outside = torch.randn(2, 5, 4, 8).transpose(1, 2), torch.randn(2, 4, 5, 8)
    query = outside if heads_outside else inside
    rest = (None, None, None, None, None, None, 5, 5, 0.0, False)
    attention_cudnn.attention_backward_own_plan(inside, query, query, query, outside, *rest)  # type: ignore[arg-type]
    [(grad, *_, out, _, _, _, _, _, _, _, _, dropout_p, _)] = calls
    torch.testing.assert_close((grad, out), (inside, outside), rtol=0, atol=0)
    assert grad.stride() == out.stride() == query.stride()
    assert math.copysign(1, dropout_p) == -1


def same_layout(found: Any, promised: Any) -> None:
    assert len(found) == len(promised)
    for ours, theirs in zip(found, promised, strict=True):
        assert (ours.shape, ours.dtype, ours.stride()) == (theirs.shape, theirs.dtype, theirs.stride())


@pytest.mark.parametrize("keep", [True, False])
def test_rows_may_overlap_in_memory(keep: bool) -> None:
    """Sliding windows: torch's kernel for the CPU would lay out its output like the query, and not write all of it."""
    signal = torch.randn(40)
    windows = signal.unfold(0, 8, 1)[None, None]  # each row begins one element after the one before
    query, key, value = windows[:, :, :5], windows[:, :, 5:12], windows[:, :, 20:27]
    got = attention(query, key, value, None, False, 0.5, keep)[0]
    wanted = (query.double() @ key.double().mT * 0.5).softmax(-1) @ value.double()
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)
