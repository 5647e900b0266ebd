"""The torch.compile backend against eager."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from optfuse.compiler.frontend import Captured, make_backend
from tests.compiler.frontend.running import assert_same, copied, run_graph


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Recorder:
    """A compile_graph that keeps what it was given."""

    def __init__(self) -> None:
        self.graphs: list[Captured] = []

    def __call__(self, captured: Captured) -> Any:
        self.graphs.append(captured)
        return run_graph(captured)

    @property
    def names(self) -> list[str]:
        return [captured.name for captured in self.graphs]


class Net(nn.Module):
    """Norms with buffers, dropout left out, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.second = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = F.gelu(self.norm(self.first(x)))
        return self.second(hidden).softmax(-1), hidden


def test_inference() -> None:
    recorder, model, x = Recorder(), Net().eval(), torch.arange(24.0).sin().reshape(4, 6)
    with torch.no_grad():
        assert_same(torch.compile(model, backend=make_backend(recorder, name="net"))(x), model(x))
    assert recorder.names == ["net0.inference"]
    assert {source.kind for source in recorder.graphs[0].inputs} == {"parameter", "buffer", "user"}


def test_training() -> None:
    torch.manual_seed(0)
    recorder, model, x = Recorder(), Net().double().train(), torch.arange(24.0, dtype=torch.float64).sin().reshape(4, 6)
    eager = copied(model)
    fast = torch.compile(model, backend=make_backend(recorder))
    for module in (fast, eager):
        probabilities, hidden = module(x)
        (probabilities[:, 0].sum() + hidden.square().sum()).backward()
    assert recorder.names == ["compiled0.forward", "compiled0.backward"]
    assert_same(dict(model.state_dict()), dict(eager.state_dict()))
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        assert_same(ours.grad, theirs.grad, rtol=1e-6, atol=1e-9)


@pytest.mark.spread(3, 2)
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
def test_other_shapes_compile_again_with_static_sizes(train: bool, dynamic: bool | None) -> None:
    recorder = Recorder()
    weight = torch.ones(6, requires_grad=train)

    def function(x: Tensor, n: int) -> tuple[Tensor, int]:
        return (x * weight).reshape(-1, x.shape[0]).cumsum(0) * n, x.shape[0] + n

    fast = torch.compile(function, backend=make_backend(recorder), dynamic=dynamic)
    for rows, n in ((3, 2), (5, 2), (5, 7), (3, 2)):
        x = torch.arange(6.0 * rows).reshape(rows, 6)
        actual, expected = fast(x, n), function(x, n)
        assert_same(actual, expected)
        if train:
            (ours,) = torch.autograd.grad(actual[0].sum(), weight)
            (theirs,) = torch.autograd.grad(expected[0].sum(), weight)
            assert_same(ours, theirs)
    for captured in recorder.graphs:
        for node in captured.graph.graph.nodes:
            value = node.meta.get("val")
            if isinstance(value, Tensor):
                assert all(type(size) is int for size in (*value.shape, *value.stride()))
        assert all(isinstance(node.meta["val"], Tensor) for node in captured.placeholders)


def test_graph_without_tensors_and_graph_without_work() -> None:
    recorder = Recorder()
    backend = make_backend(recorder)
    assert_same(torch.compile(lambda: torch.ones(3) + 1, backend=backend)(), torch.full((3,), 2.0))
    x = torch.ones(2)
    assert torch.compile(lambda x, y: (y, x), backend=backend)(x, x)[0] is x


def test_mutated_input_and_view() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(3)
        return x.view(-1), x + 1

    x, y = torch.ones(2, 2), torch.ones(2, 2)
    assert_same(torch.compile(function, backend=make_backend(run_graph))(x), function(y))
    assert_same(x, y)


def test_graph_break_gives_two_graphs() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.exp()
        torch._dynamo.graph_break()  # noqa: SLF001
        return y * 2

    recorder = Recorder()
    x = torch.ones(3)
    assert_same(torch.compile(function, backend=make_backend(recorder))(x), function(x))
    assert recorder.names == ["compiled0.inference", "compiled1.inference"]


@pytest.mark.parametrize("train", [False, True])
def test_all_true_mask_disappears(train: bool) -> None:
    def function(q: Tensor) -> Tensor:
        mask = torch.ones(5, dtype=torch.bool)[None, None, None, :].expand(1, 1, 5, 5)
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    recorder = Recorder()
    q = torch.arange(80.0).sin().reshape(2, 2, 5, 4).requires_grad_(train)
    assert_same(torch.compile(function, backend=make_backend(recorder))(q), function(q))
    calls = [n for n in recorder.graphs[0].graph.graph.nodes if "scaled_dot_product" in str(n.target)]
    assert len(calls) == 1
    assert "attn_mask" not in calls[0].kwargs
    assert len(calls[0].all_input_nodes) == 1


def test_dropout_follows_the_seed() -> None:
    fast = torch.compile(lambda x: F.dropout(x, 0.5), backend=make_backend(run_graph))
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(fast(torch.ones(100)))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_a_result_may_be_written_in_place_though_the_program_returns_a_view() -> None:
    def viewing(captured: Captured) -> Any:
        run = run_graph(captured)

        def call(inputs: list[Tensor]) -> list[Tensor]:
            with torch.no_grad():
                return [value.view(-1).view(value.shape) for value in run(inputs)]

        return call

    weight = torch.full((3,), 2.0, requires_grad=True)
    result = torch.compile(lambda x: x + 1, backend=make_backend(viewing))(torch.ones(3))
    result.mul_(weight).sum().backward()
    assert_same(weight.grad, torch.full((3,), 2.0))
