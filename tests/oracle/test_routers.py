"""Routers of mixtures of experts and a top-k sampler: small library calls are loops, and values and gradients stay."""

import pytest
import torch
from torch import Tensor

import optfuse
from tests.oracle.judging import Function


def shares(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    found, experts = torch.topk(torch.softmax(logits, -1, dtype=torch.float32), k, dim=-1)
    return found / found.sum(-1, keepdim=True), experts


def dense(logits: Tensor) -> Tensor:
    found, experts = shares(logits, 2)
    return torch.zeros_like(logits).scatter(1, experts, found.to(logits.dtype))


def in_order(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    found, experts = shares(logits, 4)
    order = torch.argsort(experts.reshape(-1), stable=True)
    counts = torch.histc(experts.reshape(-1).float(), logits.shape[-1], 0, logits.shape[-1] - 1)
    return found.reshape(-1)[order], order, counts


@pytest.mark.spread(2, 1)
@pytest.mark.parametrize(("model", "kernels"), [(dense, 3), (in_order, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_router_is_few_kernels_and_no_library_calls(model, kernels: int, dtype: torch.dtype) -> None:
    logits = torch.randn(16, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    schedule = optfuse.optimize(Function(model), (logits,), device="h200")
    assert schedule.library_ops == ()
    assert len(schedule.to_pandas()) <= kernels
    torch.testing.assert_close(schedule.compile()(logits), model(logits))


def test_half_precision_chooses_among_rounded_values() -> None:
    """Distinct float32 values that bfloat16 makes equal: the values are eager's, and positions hold them."""

    def likeliest(x: Tensor) -> tuple[Tensor, ...]:
        y = torch.sigmoid(x)
        return *torch.topk(y, 3), y

    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    values, places, y = optfuse.optimize(Function(likeliest), (x,), device="h200").compile()(x)
    torch.testing.assert_close(values, likeliest(x)[0])
    torch.testing.assert_close(y.gather(1, places), values, rtol=0, atol=0)


def test_masked_experts_are_chosen_once_each() -> None:
    """More experts are asked for than are left: positions stay distinct and within the row."""
    logits = torch.full((3, 6), -torch.inf)
    logits[:, 2] = 1.0
    model = Function(lambda x: torch.topk(x + 1, 4))
    values, places = optfuse.optimize(model, (logits,), device="h200").compile()(logits)
    assert values.tolist() == [[2.0] + [-torch.inf] * 3] * 3
    assert all(len(set(row)) == 4 and set(row) <= set(range(6)) for row in places.tolist())


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    "loss",
    [
        lambda x: (torch.topk(x.sin(), 3).values ** 2).sum(),
        lambda x: (x.sin().sort(-1, descending=True).values * torch.arange(8.0)).sum(),
        lambda x: x.sin().median(-1).values.sum() + x.cos().kthvalue(2, 0).values.sum(),
        lambda x: (dense(x) * torch.arange(8.0)).sum(),
    ],
)
def test_gradients_go_to_the_elements_that_are_chosen(loss) -> None:
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(2))
    results: list[Tensor] = []
    torch.compiler.reset()
    for function in (loss, torch.compile(loss, backend="optfuse")):
        leaf = x.clone().requires_grad_()
        function(leaf).backward()
        assert leaf.grad is not None
        results.append(leaf.grad)
    torch.testing.assert_close(*results)


def test_a_top_k_sampler_draws_from_the_likeliest() -> None:
    def sampled(logits: Tensor) -> Tensor:
        found, classes = torch.topk(logits, 2, dim=-1)
        return classes.gather(1, torch.multinomial(torch.softmax(found, -1), 1))[:, 0]

    rows = 4096
    logits = torch.tensor([0.5, 2.0, -1.0, 1.0, 0.0]).repeat(rows, 1)
    schedule = optfuse.optimize(Function(sampled), (logits,), device="h200")
    assert schedule.library_ops == ("aten.randint.default",)
    torch.manual_seed(0)
    drawn = torch.bincount(schedule.compile()(logits), minlength=5) / rows
    chances = torch.softmax(torch.tensor([2.0, 1.0]), -1)
    wanted = torch.tensor([0, chances[0], 0, chances[1], 0])
    torch.testing.assert_close(drawn, wanted, rtol=0, atol=0.03)


@pytest.mark.spread(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_a_maximum_comes_with_its_position(dtype: torch.dtype) -> None:
    x = torch.randint(0, 9, (16, 40), generator=torch.Generator().manual_seed(3)).to(dtype)
    if dtype.is_floating_point:
        x[3, 5:7] = torch.nan
    for model in (lambda x: x.max(-1), lambda x: x.min(-1)):
        schedule = optfuse.optimize(Function(model), (x,), device="h200")
        assert schedule.source.count("tl.reduce((") == 1
        assert "tl.max(" not in schedule.source
        torch.testing.assert_close(schedule.compile()(x), tuple(model(x)), equal_nan=True)
