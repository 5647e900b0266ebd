"""Attention written out by hand, as models do, against the one call that it becomes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from optfuse.compiler.frontend.passes.written_attention import recognize_attention

B, H, ROWS, KEYS, WIDTH = 2, 3, 40, 56, 16
Function = Callable[..., torch.Tensor]


def given(*, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(seed)
    return tuple(torch.randn(B, H, n, WIDTH).to(dtype) for n in (ROWS, KEYS, KEYS))


DRAWN = torch.rand(B, 1, ROWS, KEYS, generator=torch.Generator().manual_seed(1))
MASK = torch.where(DRAWN < 0.3, -3e38, 0.0).bfloat16()
BLOCKED = torch.zeros(ROWS, KEYS, dtype=torch.bool).index_fill(1, torch.tensor([3, 9]), True)
NO_KEYS = BLOCKED.clone().index_fill(0, torch.tensor([5]), True)


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(WIDTH), -1) @ v


def added(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = torch.matmul(q, k.mT) * 0.3
    weights = F.softmax(MASK + scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(F.dropout(weights, 0.5, training=False), v)


def filled_in_place(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = (q * 0.25) @ k.transpose(2, 3)
    scores.masked_fill_(BLOCKED.view(1, 1, ROWS, KEYS).expand_as(scores), torch.finfo(q.dtype).min)
    weights = F.softmax(scores.float(), dim=-1).type_as(scores)
    return (weights @ v).transpose(1, 2).contiguous()


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    seen = torch.ones(ROWS, KEYS, dtype=torch.bool, device=q.device).tril(KEYS - ROWS)
    scores = (q @ k.transpose(-2, -1)).masked_fill(seen == 0, -math.inf) * 0.5
    return F.softmax(scores, dim=3) @ v


def chosen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = torch.where(BLOCKED, -3e38, 0.0).to(q.dtype) + torch.where(~BLOCKED, q @ k.mT, -math.inf)
    return torch.softmax(scores, -1) @ v


def without_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax((q @ k.mT).masked_fill(NO_KEYS, -math.inf), -1) @ v


def as_batches(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.reshape(B * H, -1, WIDTH) for x in (q, k, v))
    slope = torch.linspace(-1, 0, KEYS).to(q.dtype).expand(B * H, 1, KEYS)
    scores = torch.baddbmm(slope, q, k.mT, beta=1.0, alpha=0.25).view(B, H, ROWS, KEYS) + MASK
    return torch.bmm(scores.softmax(-1).view(B * H, ROWS, KEYS), v)


def by_batches(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.reshape(B * H, -1, WIDTH) for x in (q, k, v))
    return torch.softmax(torch.bmm(q, k.transpose(1, 2)) / 4 + 1, -1).bmm(v)


def rewritten(function: Function, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, int]:
    """The function's result with its graph rewritten, as torch.compile hands it on, and the number of calls."""
    calls: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        changed = recognize_attention(graph)
        changed.graph.lint()
        calls.append(sum("scaled_dot_product" in str(node.target) for node in changed.graph.nodes))
        return changed

    torch.compiler.reset()
    return torch.compile(function, backend=backend, fullgraph=True)(*tensors), sum(calls)


FORMS = [plain, added, filled_in_place, causal, chosen, without_keys, as_batches, by_batches]


@pytest.mark.spread(3)
@pytest.mark.parametrize("function", FORMS, ids=lambda f: f.__name__)
def test_forms_become_one_call_that_computes_the_same(function: Function) -> None:
    tensors = given()
    result, calls = rewritten(function, tensors)
    assert calls == 1
    exact = function(*(x.double() for x in tensors)) if function not in (added, chosen, as_batches) else None
    expected = function(*tensors) if exact is None else exact
    assert result.shape == expected.shape
    torch.testing.assert_close(result.double(), expected.double(), atol=3e-2, rtol=3e-2, equal_nan=True)


def test_the_call_reads_rows_of_neighbours() -> None:
    """What comes out of a convolution has its channels apart; libraries take no such heads."""
    given_rows: list[bool] = []

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        changed = recognize_attention(graph)
        (call,) = (node for node in changed.graph.nodes if "scaled_dot_product" in str(node.target))
        given_rows.extend(node.meta["val"].stride(-1) == 1 for node in call.args[:3])
        return changed

    tensors = tuple(x.mT.contiguous().mT for x in given())
    torch.compiler.reset()
    result = torch.compile(plain, backend=backend)(*tensors)
    assert given_rows == [True, True, True]
    torch.testing.assert_close(result, plain(*tensors), atol=3e-2, rtol=3e-2)


def test_a_row_without_keys_is_no_number() -> None:
    result, _ = rewritten(without_keys, given())
    assert bool(result[:, :, 5].isnan().all())
    assert not bool(result[:, :, 6:].isnan().any())


@pytest.mark.parametrize("function", FORMS[:5], ids=lambda f: f.__name__)
def test_exported_graphs_too(function: Function) -> None:
    class Model(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return function(q, k, v)

    tensors = given()
    program = torch.export.export(Model(), tensors, strict=False)
    changed = recognize_attention(program.graph_module)
    changed.graph.lint()
    assert sum("scaled_dot_product" in str(node.target) for node in changed.graph.nodes) == 1


def written_later(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """What is added to the result of attention is written over it, as Nystromformer's convolution is."""
    result = plain(q, k, v)
    result += q
    return result


def written_through_a_view(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    result = plain(q, k, v)
    result.view(B * H, ROWS, WIDTH)[:, 1:].mul_(2)
    return result


@pytest.mark.parametrize("function", [added, written_later, written_through_a_view], ids=lambda f: f.__name__)
def test_gradients(function: Function) -> None:
    tensors = [x.requires_grad_() for x in given()]
    result, calls = rewritten(function, tuple(tensors))
    assert calls == 1
    weight = torch.randn(result.shape).to(result.dtype)
    ours = torch.autograd.grad(result, tensors, weight)
    for one, expected in zip(ours, torch.autograd.grad(function(*tensors), tensors, weight), strict=True):
        torch.testing.assert_close(one, expected, atol=5e-2, rtol=5e-2)


def weights_too(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    weights = torch.softmax(q @ k.mT, -1)
    return weights @ v, weights


def other_axis(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT, -2) @ v


def weak_fill(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax((q @ k.mT).masked_fill(NO_KEYS, -5.0), -1) @ v


def written_between(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q = q * 1
    scores = q @ k.mT
    q.zero_()
    return torch.softmax(scores, -1) @ v + q


def written_into_a_view(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.mT
    first = scores[..., 0]
    scores.mul_(2.0)
    return torch.softmax(scores, -1) @ v + first.unsqueeze(-1)


def added_to_the_mask(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(B, H, ROWS, KEYS, dtype=q.dtype)
    mask += q @ k.mT
    return torch.softmax(mask, -1) @ v


def bent(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.tanh(q @ k.mT), -1) @ v


def few_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k[:, :, :8].mT, -1) @ v[:, :, :8]


@pytest.mark.parametrize(
    "function",
    [weights_too, other_axis, weak_fill, written_between, written_into_a_view, added_to_the_mask, bent, few_keys],
    ids=lambda f: f.__name__,
)
def test_what_is_not_the_same_stays(function: Function) -> None:
    tensors = given()
    result, calls = rewritten(function, tensors)
    assert calls == 0
    torch.testing.assert_close(result, function(*tensors), equal_nan=True)


def test_single_precision_and_learned_masks_stay() -> None:
    assert rewritten(plain, given(dtype=torch.float32))[1] == 0
    bias = torch.zeros(1, H, ROWS, KEYS, dtype=torch.bfloat16, requires_grad=True)

    def biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.mT + bias, -1) @ v

    assert rewritten(biased, given())[1] == 0
