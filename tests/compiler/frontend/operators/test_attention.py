"""Attention in every variant stays one operator in a training step, and its gradients are eager's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from optfuse.compiler.frontend import Captured, make_backend, train_module
from optfuse.compiler.frontend.operators.attention import keeps_seeds_on_host
from optfuse.compiler.frontend.torch_internals.torch_bridge import operator_name
from tests.compiler.frontend.running import run_graph, targets

L, S, D = 5, 7, 12


@dataclass(frozen=True, slots=True)
class Variant:
    """A call: shapes of query, key, value and mask, the mask's dtype (None: the query's), and options."""

    query: tuple[int, ...] = (2, 4, L, D)
    key: tuple[int, ...] = (2, 4, S, D)
    value: tuple[int, ...] = (2, 4, S, D)
    mask: tuple[int, ...] | None = None
    mask_dtype: torch.dtype | None = None
    learned: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def tensors(self, dtype: torch.dtype) -> list[Tensor]:
        """Query, key, value and mask. Boolean masks leave out a whole row."""
        generator = torch.Generator().manual_seed(0)
        found = [torch.randn(shape, generator=generator).to(dtype) for shape in (self.query, self.key, self.value)]
        if self.mask is not None:
            mask = torch.randn(self.mask, generator=generator)
            if self.mask_dtype == torch.bool:
                mask[..., 0, :] = -1
                found.append(mask > -0.5)
            else:
                found.append(mask.to(self.mask_dtype or dtype))
        return found

    def call(self, *tensors: Tensor) -> Tensor:
        """The attention, as a model writes it."""
        return F.scaled_dot_product_attention(*tensors, **self.options)


GQA = {"key": (2, 2, S, D), "value": (2, 2, S, D)}
VARIANTS = {
    "plain": Variant(),
    "causal": Variant(options={"is_causal": True}),
    "scale": Variant(options={"scale": 0.3}),
    "negative scale": Variant(mask=(L, S), learned=True, options={"scale": -0.2}),
    "bool mask": Variant(mask=(2, 1, L, S), mask_dtype=torch.bool),
    "bool mask of one row": Variant(mask=(2, 1, 1, S), mask_dtype=torch.bool),
    "float mask": Variant(mask=(2, 4, L, S)),
    "learned mask": Variant(mask=(2, 4, L, S), learned=True),
    "learned bias a head": Variant(mask=(4, L, S), learned=True),
    "learned bias of all": Variant(mask=(L, S), learned=True),
    "learned bias a key": Variant(mask=(2, 1, 1, S), learned=True),
    "learned bias a query": Variant(mask=(1, 4, L, 1), learned=True),
    "other head size of values": Variant(value=(2, 4, S, 10)),
    "other head size, causal": Variant(value=(2, 4, S, 10), options={"is_causal": True}),
    "other head size, bool mask": Variant(value=(2, 4, S, 10), mask=(L, S), mask_dtype=torch.bool),
    "grouped": Variant(**GQA, options={"enable_gqa": True}),
    "grouped, learned mask": Variant(**GQA, mask=(4, L, S), learned=True, options={"enable_gqa": True}),
    "grouped, other head size": Variant(key=(2, 2, S, D), value=(2, 2, S, 10), options={"enable_gqa": True}),
    "grouped without a batch": Variant((4, L, D), (2, S, D), (2, S, 9), options={"enable_gqa": True}),
    "three dimensions": Variant((3, L, D), (3, S, D), (3, S, D)),
    "two dimensions": Variant((L, D), (S, D), (S, D)),
    "five dimensions": Variant((2, 3, 2, L, D), (2, 3, 2, S, D), (2, 3, 2, S, D), (3, 1, L, S), learned=True),
    "broadcast batch": Variant((2, 4, L, D), (1, 4, S, D), (1, 1, S, D), mask=(L, S), learned=True),
    "no keys": Variant(key=(2, 4, 0, D), value=(2, 4, 0, D)),
}


class Model(nn.Module):
    """One attention whose tensors are parameters where they want gradients."""

    def __init__(self, variant: Variant, dtype: torch.dtype) -> None:
        super().__init__()
        self.call = variant.call
        *tensors, mask = [*variant.tensors(dtype), *([] if variant.mask else [None])]
        self.tensors = nn.ParameterList(tensors)
        wanted = mask is not None and variant.learned
        self.mask = nn.Parameter(mask) if wanted else nn.Buffer(mask) if mask is not None else None

    def forward(self, one: Tensor) -> Tensor:
        tensors = [x * one for x in self.tensors]
        return self.call(*tensors, *([] if self.mask is None else [self.mask])).tanh()


def step(model: nn.Module, function: Callable[..., Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The output and every gradient."""
    out = function(torch.ones((), dtype=dtype))
    weights = torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(dtype)
    grads = torch.autograd.grad((out * weights).sum(), list(model.parameters()), allow_unused=True)
    return {"output": out.detach(), **dict(zip([n for n, _ in model.named_parameters()], grads, strict=True))}


def apart(graphs: list[Captured]) -> set[str]:
    """Operators that attention is made of."""
    names = {name.split(".")[1] for captured in graphs for name in targets(captured) if name.count(".") == 2}
    return {name for name in names if any(word in name for word in ("bmm", "softmax", "amax", "exp_", "matmul"))} | (
        names & {"exp", "mm"}
    )


def compare(variant: Variant, dtype: torch.dtype) -> list[Captured]:
    model, exact = Model(variant, dtype), Model(variant, torch.float64)
    exact.load_state_dict(model.state_dict())
    graphs: list[Captured] = []

    def compile_graph(captured: Captured) -> Any:
        graphs.append(captured)
        return run_graph(captured)

    ours = step(model, train_module(model, (torch.ones((), dtype=dtype),), {}, compile_graph), dtype)
    eager, reference = step(model, model, dtype), step(exact, exact, torch.float64)
    for name, wanted in reference.items():
        if wanted is None:
            assert ours[name] is None
            continue
        assert ours[name].shape == eager[name].shape
        assert ours[name].dtype == eager[name].dtype
        error, allowed = ((x[name].double() - wanted).norm() for x in (ours, eager))
        slack = 20 if dtype == torch.float64 else 1  # there eager is the reference
        assert error <= 2 * allowed + slack * torch.finfo(dtype).eps * (1 + wanted.norm()), name
    return graphs


@pytest.mark.spread(7)
@pytest.mark.parametrize("name", VARIANTS)
def test_training_step_like_eager(name: str) -> None:
    graphs = compare(VARIANTS[name], torch.float32)
    assert apart(graphs) == set()
    assert all("attention" in str(targets(captured)) for captured in graphs)


@pytest.mark.spread(7)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", ["plain", "learned bias a head", "other head size of values", "grouped, learned mask"])
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    assert apart(compare(VARIANTS[name], dtype)) == set()


def test_float32_mask_of_half_queries() -> None:
    variant = Variant(mask=(4, L, S), mask_dtype=torch.float32, learned=True)
    assert apart(compare(variant, torch.bfloat16)) == set()


def test_torchs_own_operator_is_kept_where_there_is_one() -> None:
    for name in ("plain", "causal", "bool mask", "float mask"):
        graphs = compare(VARIANTS[name], torch.float32)
        assert any("aten._scaled_dot_product" in str(targets(captured)) for captured in graphs)
        assert not any("optfuse" in str(targets(captured)) for captured in graphs)


def test_an_operator_with_seeds_on_the_host_is_not_taken_with_dropout() -> None:
    operator = torch.ops.aten._scaled_dot_product_efficient_attention.default  # noqa: SLF001
    assert keeps_seeds_on_host([operator_name(operator)])
    others = "_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention"
    assert not keeps_seeds_on_host([operator_name(getattr(torch.ops.aten, name).default) for name in others])


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", ["causal", "learned bias a head", "grouped", "other head size of values"])
def test_dropout_is_the_same_backward(name: str) -> None:
    """For fixed weights the output is linear in the values: with their own gradient it agrees exactly."""
    variant = VARIANTS[name]
    dropping = Variant(**{f: getattr(variant, f) for f in ("query", "key", "value", "mask", "learned")})
    dropping.options.update(variant.options, dropout_p=0.5)
    model = Model(dropping, torch.float64)
    graphs: list[Captured] = []

    def compile_graph(captured: Captured) -> Any:
        graphs.append(captured)
        return run_graph(captured)

    # as it stands, without the tanh: linear in the values
    model.forward = lambda one: model.call(*(x * one for x in model.tensors), *([model.mask] if name[0] == "l" else []))
    one = torch.ones((), dtype=torch.float64)
    run = train_module(model, (one,), {}, compile_graph)
    assert apart(graphs) == set()

    def at(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return run(one)

    first, again, other = at(1), at(1), at(2)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)

    direction = torch.linspace(-1, 1, first.numel(), dtype=torch.float64).reshape(first.shape)
    grads = dict(zip(model.tensors, torch.autograd.grad((first * direction).sum(), list(model.tensors)), strict=True))
    value = model.tensors[2]
    torch.testing.assert_close((grads[value] * value).sum(), (first * direction).sum())
    for x in list(model.tensors)[:2]:  # finite differences under the same draw
        way = torch.cos(torch.arange(x.numel(), dtype=torch.float64)).reshape(x.shape)
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                x.add_(way, alpha=sign * 1e-6)
            ends.append((at(1) * direction).sum().detach())
            with torch.no_grad():
                x.sub_(way, alpha=sign * 1e-6)
        torch.testing.assert_close((grads[x] * way).sum(), (ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=1e-6)


def test_equal_calls_draw_apart() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5) - F.scaled_dot_product_attention(
                x, x, x, dropout_p=0.5
            )

    x = torch.randn(2, 3, 8, 4, requires_grad=True)
    assert train_module(Twice(), (x,), {}, run_graph)(x).abs().max() > 0.1


@pytest.mark.spread(2)
@pytest.mark.parametrize("any_layout", [False, True])
def test_strides_are_eagers_where_they_show(any_layout: bool) -> None:
    class Shown(nn.Module):
        def forward(self, q: Tensor, mask: Tensor) -> Tensor:
            out = F.scaled_dot_product_attention(q, q, q, mask)
            return out.transpose(1, 2).contiguous() if any_layout else out.view(2, 3 * L, 4)

    args = (torch.randn(2, 3, L, 4, requires_grad=True), torch.randn(L, L, requires_grad=True))
    graphs: list[Captured] = []

    def compile_graph(captured: Captured) -> Any:
        graphs.append(captured)
        return run_graph(captured)

    result = train_module(Shown(), args, {}, compile_graph)(*args)
    torch.testing.assert_close(result, Shown()(*args))
    assert result.stride() == Shown()(*args).stride()
    copies = targets(graphs[0])
    assert (copies["aten.clone.default"] + copies["aten._to_copy.default"] > 0) == (not any_layout)


class Projected(nn.Module):
    """A layer with a learned bias."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.bias = nn.Parameter(torch.linspace(-1, 1, 2 * L * L).reshape(2, L, L))
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        q = self.project(x).view(2, L, 2, 4).transpose(1, 2)
        dropout = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(q, q, q, self.bias.to(q.dtype), dropout_p=dropout)
        return out.transpose(1, 2).reshape(2, L, 8)


@pytest.fixture
def recorded() -> tuple[Callable[..., Any], list[Captured]]:
    torch._dynamo.reset()  # noqa: SLF001 - its public face
    graphs: list[Captured] = []

    def compile_graph(captured: Captured) -> Any:
        graphs.append(captured)
        return run_graph(captured)

    return make_backend(compile_graph), graphs


@pytest.mark.spread(2)
@pytest.mark.parametrize("train", [False, True])
def test_torch_compile(recorded: Any, train: bool) -> None:
    backend, graphs = recorded
    model, x = Projected(), torch.randn(2, L, 8)
    with torch.set_grad_enabled(train):
        out = torch.compile(model, backend=backend)(x)
    torch.testing.assert_close(out, model(x))
    if train:
        ours = torch.autograd.grad(out.square().sum(), list(model.parameters()))
        theirs = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
        torch.testing.assert_close(ours, theirs)
    assert apart([graphs[0]]) == set()
    assert all("attention" in str(targets(captured)) for captured in graphs)


def test_torch_compile_inference_with_dropout(recorded: Any) -> None:
    backend, graphs = recorded
    model, x = Projected(0.5).train(), torch.randn(2, L, 8)
    with torch.no_grad():
        compiled = torch.compile(model, backend=backend)
        torch.manual_seed(0)
        first = compiled(x)
        torch.manual_seed(0)
        assert torch.equal(first, compiled(x))
        assert not torch.equal(first, compiled(x))
    assert targets(graphs[0])["optfuse.attention_dropout.default"] == 1
    assert apart(graphs) == set()


def test_autocast_and_checkpoint(recorded: Any) -> None:
    backend, graphs = recorded
    model, x = Projected(), torch.randn(2, L, 8, requires_grad=True)

    def run(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)

    out = torch.compile(run, backend=backend)(x)
    out.float().square().sum().backward()
    expected = run(x)
    assert out.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(out, expected, rtol=0.02, atol=0.02)
    assert all("optfuse.attention" in str(targets(captured)) for captured in graphs)
    assert not any("softmax" in str(targets(captured)) for captured in graphs)


def test_a_call_that_eager_refuses_is_refused() -> None:
    x = torch.randn(1, 2, L, 4, requires_grad=True)

    class Wrong(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(x, x, x, x.new_zeros(L, L), is_causal=True, dropout_p=0.1)

    with pytest.raises(Exception, match="attn_mask should not be set when is_causal"):
        train_module(Wrong(), (x,), {}, run_graph)
