"""Sizes that change, through torch.compile: one trace for a range of them, and sizes that depend on data."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import optfuse
from optfuse.compiler.frontend.sizes.by_size import GROUP, BySize
from optfuse.compiler.frontend.sizes.size_range import OneSizeError, Ranged
from optfuse.compiler.frontend.sizes.size_reader import SizeReader
from optfuse.compiler.frontend.torch_internals.torch_bridge import compile_lock
from optfuse.compiler.ir.size_decisions import Decisions
from tests.torch_compile.test_torch_compile import Compiler, compiled, planned

__all__ = ["compiled"]

CAPTURED = {"capture_dynamic_output_shape_ops": True, "capture_scalar_outputs": True}


def captured() -> Any:
    """A context in which torch.compile keeps nodes that find a size in its graphs."""
    return torch._dynamo.config.patch(CAPTURED)  # noqa: SLF001 - its public face


class Attention(nn.Module):
    """A causal block whose length and batch may change."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.places = nn.Embedding(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        x = x + self.places(torch.arange(length))
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 2, 4).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, 8)


def gradients(module: nn.Module, run: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """The result and the parameters' gradients."""
    module.zero_grad()
    result = run(x)
    (result * x.cos()).sum().backward()
    return [result.detach(), *(p.grad for p in module.parameters() if p.grad is not None)]


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"dynamic": True}, {}, "mark_dynamic"])
def test_training_at_many_sizes_is_traced_once_for_the_range(compiled: Compiler, how: Any) -> None:
    torch.manual_seed(0)
    module = Attention()
    eager = copy.deepcopy(module)
    fast = compiled(module, **(how if isinstance(how, dict) else {}))
    for batch, length in ((2, 5), (3, 7), (4, 9), (2, 5)):
        x = torch.randn(batch, length, 8)
        if how == "mark_dynamic":
            for axis in (0, 1):
                torch._dynamo.mark_dynamic(x, axis)  # noqa: SLF001 - its public face
        torch.testing.assert_close(gradients(module, fast, x), gradients(eager, eager, x), rtol=1e-4, atol=1e-5)
    assert planned(compiled)
    # without a mark the first size is traced as it is
    assert len(compiled.runs) == (2 if how == {} else 1)


@pytest.mark.slow
@given(sizes=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), min_size=2, max_size=6))
@settings(max_examples=5)
def test_drawn_sizes_zero_and_one_among_them(sizes: list[tuple[int, int]]) -> None:
    def function(x: Tensor, n: int) -> tuple[Tensor, ...]:
        y = (x * 2).softmax(0) if x.shape[0] else x
        return y.t() @ x, torch.cat([x, y]) + n, (x - x.mean(1, keepdim=True)).sum(), x.reshape(-1)[: x.shape[0] * 2]

    torch._dynamo.reset()  # noqa: SLF001 - its public face
    fast = torch.compile(function, backend="optfuse", dynamic=True)
    for rows, columns in sizes:
        x = torch.randn(rows, columns)
        torch.testing.assert_close(fast(x, rows + 1), function(x, rows + 1), equal_nan=True)


def test_further_sizes_are_scheduled_when_they_come_again(compiled: Compiler) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.softmax(x, -1)[: int(math.sqrt(x.shape[0]))]

    fast = compiled(function, fullgraph=True, dynamic=True)
    for rows in range(2, GROUP + 4):
        x = torch.randn(2 * rows, 3)
        torch.testing.assert_close(fast(x), function(x))
    (run,) = compiled.runs
    assert len(compiled.names()) == GROUP
    assert [name for name, _ in run.record.unplanned] == ["compiled0"]
    x = torch.randn(2 * (GROUP + 3), 3)
    torch.testing.assert_close(fast(x), function(x))
    assert len(compiled.names()) == GROUP + 1


def test_many_sizes_cost_few_compiles() -> None:
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    compiles: list[str] = []

    def compile_size(fixed: torch.fx.GraphModule, name: str, _: Any) -> Callable[..., Any]:
        compiles.append(name)
        return fixed

    reader = SizeReader((sympy.Symbol("s"),), ((0, ("size", 0)),), nested=False)
    run = BySize(graph, "g", reader, compile_size, lambda _: None)
    calls = 30
    for _ in range(calls):
        for size in range(1, 200):  # more than are kept
            assert run(torch.zeros(size)).shape == (size,)
    assert len(compiles) <= GROUP * (1 + math.ceil(math.log2(calls)))


def test_small_sizes_that_are_like_no_other_leave_a_range_for_the_rest() -> None:
    symbol = sympy.Symbol("s")
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    alone: list[str] = []
    tried: list[int] = []

    def compile_size(fixed: torch.fx.GraphModule, name: str, _: Any) -> Callable[..., Any]:
        alone.append(name)
        return fixed

    def compile_range(fixed: torch.fx.GraphModule, _: str, sizes: Mapping[str, int], __: Any) -> Ranged:
        tried.append(sizes["s"])
        if sizes["s"] < 6:
            raise OneSizeError
        return Ranged(fixed, {symbol: "s"}, (symbol > 5,), Decisions(dict(sizes), {"s": (6, 99)}))

    reader = SizeReader((symbol,), ((0, ("size", 0)),), nested=False, in_tensors=frozenset([symbol]))
    run = BySize(graph, "g", reader, compile_size, lambda _: None, compile_range=compile_range)
    for size in (2, 3, 4, 2, 9, 17, 6, 3):
        assert run(torch.zeros(size)).shape == (size,)
    assert alone == ["g[s=2]", "g[s=3]", "g[s=4]"]
    assert tried == [2, 3, 4, 9]


def test_threads_compile_one_after_another() -> None:
    """A trace patches torch's modules: while one thread compiles a size, no other one may trace, Dynamo's neither."""
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    entered: list[bool] = []

    def compile_size(fixed: torch.fx.GraphModule, *_: Any) -> Callable[..., Any]:
        other = threading.Thread(target=lambda: entered.append(compile_lock.acquire(blocking=False)))
        other.start()
        other.join()
        return fixed

    reader = SizeReader((sympy.Symbol("s"),), ((0, ("size", 0)),), nested=False)
    BySize(graph, "g", reader, compile_size, lambda _: None)(torch.zeros(3))
    assert entered == [False]


def test_a_size_that_is_marked_as_unknown(compiled: Compiler) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.softmax(x * x.shape[0], -1)

    fast = compiled(function, fullgraph=True)
    for rows in (4, 1, 0, 4):
        x = torch.randn(rows, 5)
        torch._dynamo.decorators.mark_unbacked(x, 0)  # noqa: SLF001 - its public face
        torch.testing.assert_close(fast(x), function(x))
    assert len(compiled.runs) == 1
    assert planned(compiled)


def test_a_float_that_changes(compiled: Compiler) -> None:
    def function(x: Tensor, rate: float) -> Tensor:
        return x * rate + F.layer_norm(x, (3,), eps=rate * 1e-3)

    fast = compiled(function, dynamic=True)
    x = torch.randn(4, 3)
    for rate in (0.1, 0.3, 0.1):
        torch.testing.assert_close(fast(x, rate), function(x, rate))
    assert len(compiled.runs) == 2  # eps is a number of the first graph


@pytest.mark.spread(4)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 2).nonzero() + 1,
        lambda x: x[x > 0].exp().sum(0),
        lambda x: x[: int((x > 0).sum().item()) % 3 + 1] * 2,
        lambda x: torch.repeat_interleave(x * 2, (x[:, 0] > 0).long() + 1, dim=0).sin() + 1,
        lambda x: (x.detach() * 3).round().unique() * 2 + x.sum(),
        lambda x: x.split((x.sigmoid() > 0).sum(0).tolist()[:1])[0] * 2,
    ],
)
def test_around_a_node_that_finds_a_size_all_is_scheduled(
    compiled: Compiler, function: Callable[[Tensor], Tensor]
) -> None:
    x = torch.randn(5, 6, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    with captured():
        fast = compiled(function, fullgraph=True)
        for _ in range(3):  # scheduled the second time, the third time as scheduled
            got, wanted = fast(x), function(y)
            torch.testing.assert_close(got, wanted)
            if wanted.requires_grad:
                got.square().sum().backward()
                wanted.square().sum().backward()
                torch.testing.assert_close(x.grad, y.grad, rtol=1e-5, atol=1e-4)
    (run,) = compiled.runs
    assert any("only its run tells" in reason for _, reason in run.record.unplanned)
    assert any("part" in name for name in compiled.names())


@torch.library.custom_op("optfuse_tests::products_of_groups", mutates_args=())
def products_of_groups(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    starts = [0, *ends.tolist()]
    return torch.cat([x[start:end] @ w for start, end, w in zip(starts, starts[1:], weights, strict=False)])


@products_of_groups.register_fake
def _(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weights.shape[2])


def _groups_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    x, weights = ctx.saved_tensors
    of_x, of_weights = torch.zeros_like(x), torch.zeros_like(weights)
    start = 0
    for k, end in enumerate(ctx.ends.tolist()):
        if start != end:
            of_x[start:end] = gradient[start:end] @ weights[k].T
            of_weights[k] = x[start:end].T @ gradient[start:end]
        start = end
    return of_x, of_weights, None


def _keep_groups(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.ends = inputs[2]


products_of_groups.register_autograd(_groups_backward, setup_context=_keep_groups)


@pytest.mark.parametrize("dynamic", [False, True])
def test_around_a_backward_that_reads_values_all_is_scheduled(compiled: Compiler, dynamic: bool) -> None:
    """No trace can follow the operator's backward, which loops over offsets: it alone runs as it is."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(6))
            self.weights = nn.Parameter(torch.randn(3, 6, 6))

        def forward(self, x: Tensor, ends: Tensor) -> Tensor:
            return products_of_groups((x * self.scale).sin(), self.weights, ends).exp() * 3 + 1

    module = Experts()
    fast = compiled(module, dynamic=dynamic)
    for rows in (8, 5, 7) if dynamic else (8, 8):
        x, ends = torch.randn(rows, 6), torch.tensor([2, 2, rows])
        torch.testing.assert_close(*(gradients(module, partial(run, ends=ends), x) for run in (fast, module)))
    (run,) = compiled.runs
    assert [name for name, _ in run.record.unplanned] == ["compiled0.part2"]
    assert run.record.by_size == []
    halves = [f"compiled0.part{part}.{half}" for part in (1, 3) for half in ("forward", "backward")]
    assert sorted(compiled.names()) == sorted(halves)


def test_without_gradients_such_a_backward_cuts_nothing(compiled: Compiler) -> None:
    weights = nn.Parameter(torch.randn(3, 6, 6))
    x, ends = torch.randn(8, 6), torch.tensor([2, 2, 8])

    def function(x: Tensor) -> Tensor:
        return products_of_groups(x.sin(), weights, ends).exp() * 3

    with torch.no_grad():
        torch.testing.assert_close(compiled(function)(x), function(x))
    assert compiled.names() == ["compiled0.inference"]
    assert compiled.runs[0].record.unplanned == []


def test_such_a_backward_of_a_size_that_data_decides(compiled: Compiler) -> None:
    class Chosen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(6))
            self.weights = nn.Parameter(torch.randn(2, 6, 6))

        def forward(self, x: Tensor) -> Tensor:
            some = x[x[:, 0] > 0] * self.scale
            ends = torch.full((2,), some.shape[0], device=x.device)
            return products_of_groups(some.sin(), self.weights, ends).exp().sum(0) * 2

    torch.manual_seed(0)
    module = Chosen()
    with captured():
        fast = compiled(module, fullgraph=True)
        for rows in (8, 8, 13):
            x = torch.randn(rows, 6)
            torch.testing.assert_close(gradients(module, fast, x), gradients(module, module, x))
    reasons = {reason.partition(": ")[2] for run in compiled.runs for _, reason in run.record.unplanned}
    assert "a backward that reads the values of tensors" in reasons


def test_sizes_that_data_decides_have_a_range(compiled: Compiler) -> None:
    """Tokens go to experts: some of none at all, some of one, others of numbers that never come again."""
    torch.manual_seed(1)
    module = Routed()
    eager = copy.deepcopy(module)
    with captured():
        fast = compiled(module, fullgraph=True, dynamic=True)
        for tokens in (14, 13, 9, 20, 31):
            x = torch.randn(tokens, 6)
            torch.testing.assert_close(gradients(module, fast, x), gradients(eager, eager, x))
    (run,) = compiled.runs
    parts = {f"compiled0.part{part}.{half}" for part in (1, 3, 5, 7) for half in ("forward", "backward")}
    assert {name for name in compiled.names() if "[" not in name} == parts
    of_data = [made for made in run.record.schedules if made.name == "compiled0.part3.forward"]
    assert all('@triton.jit(do_not_specialize=["u0"])' in made.source for made in of_data)
    assert {reason.partition(": ")[2] for _, reason in run.record.unplanned} == {
        "a size or value that only its run tells"
    }
    assert run.record.by_size == []


def test_sizes_that_arguments_hold_only_in_sums(compiled: Compiler) -> None:
    """The last part is given tensors of u0 + u1 + 1 and of u0 // 2 rows."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        some = x[x[:, 0] > 0]
        rows = torch.cat([some, x[x[:, 1] > 0], x[:1]]) * 2
        halves = some[: some.shape[0] // 2] * 2
        return rows[:, 1].nonzero(), rows.cos() + 1, halves.sin() + 1

    with captured():
        fast = compiled(function, fullgraph=True)
        for seed in (0, 0, 1, 1):
            x = torch.randn(8, 3, generator=torch.Generator().manual_seed(seed))
            torch.testing.assert_close(fast(x), function(x))
    assert all(".part" in name for (run,) in [compiled.runs] for name, _ in run.record.unplanned)
    assert sum(".part7[" in name for name in compiled.names()) == 2


class Routed(nn.Module):
    """A mixture of experts: each token goes to the one that its router likes best."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(6, 9), nn.SiLU(), nn.Linear(9, 6)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).max(-1)
        result = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            (tokens,) = (chosen == k).nonzero(as_tuple=True)
            result.index_add_(0, tokens, (expert(x[tokens]) * weights[tokens, None]).to(x.dtype))
        return F.gelu(result)


@pytest.mark.spread(2)
@pytest.mark.parametrize("cast", [False, True])
def test_experts_that_choose_their_tokens(compiled: Compiler, cast: bool) -> None:
    torch.manual_seed(1)
    module = Routed()
    eager = copy.deepcopy(module)
    with captured(), torch.autocast("cpu", torch.bfloat16, enabled=cast):
        fast = compiled(module, fullgraph=True)
        for x in (torch.randn(8, 6), torch.randn(8, 6), torch.zeros(8, 6)):
            tolerance = {"rtol": 3e-2, "atol": 3e-2} if cast else {}
            torch.testing.assert_close(gradients(module, fast, x), gradients(eager, eager, x), **tolerance)
    assert len(compiled.runs) == 1
    assert compiled.names()


def test_a_size_that_a_check_settles_is_checked(compiled: Compiler) -> None:
    def function(x: Tensor) -> Tensor:
        places = x.nonzero()
        torch._check(places.size(0) == 4)  # noqa: SLF001 - public
        return places + 3

    def number(x: Tensor) -> Tensor:
        n = x[0].item()
        torch._check(n == 1)  # noqa: SLF001 - public
        return x * n

    x = torch.tensor([1, 1, 3, 4, 0, 0])
    with captured():
        for checked in (function, number):
            fast = compiled(checked, fullgraph=True)
            assert torch.equal(fast(x), checked(x))
            with pytest.raises(RuntimeError):
                fast(x * 0)


@pytest.mark.parametrize(
    "scaled",
    [
        lambda x, n: torch.add(x, x * 2, alpha=n.max()),
        lambda x, n: x.clone().sub_(x * 2, alpha=n[1]),
        lambda x, n: torch.addcmul(x, x, x, value=n.max()),
    ],
    ids=["add", "sub_", "addcmul"],
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32], ids=str)
def test_a_tensor_given_for_a_number_costs_its_operator_alone(scaled: Any, dtype: torch.dtype) -> None:
    def function(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        return scaled(x.sin(), n).cos(), x.exp() * 2

    torch._dynamo.reset()  # noqa: SLF001 - its public face
    before = len(optfuse.compiled_graphs())
    with captured():
        fast = torch.compile(function, backend="optfuse", fullgraph=True)
        for numbers in ([3, 1], [2, 5]):
            x, n = torch.randn(6, requires_grad=True), torch.tensor(numbers, dtype=dtype)
            got, wanted = fast(x, n), function(x, n)
            torch.testing.assert_close(got, wanted)
            torch.testing.assert_close(
                torch.autograd.grad(sum(got).sum(), x), torch.autograd.grad(sum(wanted).sum(), x)
            )
    graphs = optfuse.compiled_graphs()[before:]
    assert {graph.name for graph in graphs if graph.why_not} == {"compiled0.part2"}
    assert any(graph.name.endswith(".forward") and not graph.why_not for graph in graphs)


def test_a_tensor_is_an_operand_where_its_number_is_read_by_itself(compiled: Compiler) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x / x.max(), x * x.max().item()

    x = torch.randn(6)
    with captured():
        torch.testing.assert_close(compiled(function, fullgraph=True)(x), function(x))
    (run,) = compiled.runs
    assert [reason for name, reason in run.record.unplanned if name == "compiled0.part2"] == [
        "item: a size or value that only its run tells"
    ]


def test_what_runs_as_traced_is_named() -> None:
    torch._dynamo.reset()  # noqa: SLF001 - its public face
    before = len(optfuse.compiled_graphs())
    with captured():
        torch.compile(lambda x: x.exp()[x > 0], backend="optfuse", fullgraph=True)(torch.randn(6))
    found = {graph.name: graph.why_not for graph in optfuse.compiled_graphs()[before:]}
    assert found["compiled0.part1.inference"] == ""
    assert found["compiled0.part2"] == "getitem: a size or value that only its run tells"
