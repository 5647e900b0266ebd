"""Training steps through AOTAutograd against eager ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from optfuse.compiler.frontend import Captured, capture_training, train_module
from optfuse.compiler.frontend.graph import captured
from optfuse.compiler.stages import fusion_problem
from optfuse.errors import CaptureError
from optfuse.runtime.graph_choice import interest_of
from tests.compiler.frontend.running import assert_same, copied, run_graph, targets


class Classifier(nn.Module):
    """Convolution, batch norm, pooling, a tied projection, a loss and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.project = nn.Linear(6, 6)
        self.again = nn.Linear(6, 6)
        self.again.weight = self.project.weight
        self.layer_norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor, labels: Tensor, scale: float = 2.0) -> dict[str, Any]:
        hidden = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2).mean((2, 3))
        hidden = F.gelu(self.again(F.silu(self.project(hidden)))) + hidden * scale
        logits = self.head(self.layer_norm(hidden))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits, "nothing": None}


def batch() -> tuple[tuple[Any, ...], dict[str, Any]]:
    x = torch.arange(2 * 3 * 8 * 8.0).sin().reshape(2, 3, 8, 8)
    return (x, torch.tensor([1, -100])), {"scale": 0.5}


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.spread(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_step_like_eager(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Classifier().to(dtype).train()
    args, kwargs = batch()
    args = (args[0].to(dtype).requires_grad_(), args[1])
    eager, (eager_args, eager_kwargs) = copied(model), copied((args, kwargs))
    expected = eager(*eager_args, **eager_kwargs)
    expected["loss"].backward()

    step = train_module(model, args, kwargs, run_graph, name="classifier")
    actual = step(*args, **kwargs)
    actual["loss"].backward()

    assert_same(actual, expected)
    assert_same(gradients(model), gradients(eager), rtol=1e-4, atol=1e-5)
    assert_same(args[0].grad, eager_args[0].grad, rtol=1e-4, atol=1e-5)
    assert_same(dict(model.state_dict()), dict(eager.state_dict()))


@pytest.mark.slow
def test_two_steps_with_an_optimizer() -> None:
    torch.manual_seed(0)
    model = Classifier().train()
    eager = copied(model)
    args, kwargs = batch()
    step = train_module(model, args, kwargs, run_graph)
    for function, module in ((step, model), (eager, eager)):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            function(*args, **kwargs)["loss"].backward()
            optimizer.step()
    assert_same(dict(model.state_dict()), dict(eager.state_dict()), rtol=1e-4, atol=1e-5)


@dataclass(frozen=True)
class Halves:
    """The classifier's graphs, and its state before and after they were captured."""

    forward: Captured
    backward: Captured
    before: dict[str, Tensor]
    model: nn.Module


@pytest.fixture(scope="module")
def halves() -> Halves:
    model = Classifier().train()
    args, kwargs = batch()
    before = copied(dict(model.state_dict()))
    return Halves(*capture_training(model, args, kwargs, name="c"), before, model)


def test_graphs_are_those_that_run(halves: Halves) -> None:
    forward, backward = halves.forward, halves.backward
    args, kwargs = batch()
    seen: dict[str, Captured] = {}

    def compile_graph(captured: Captured) -> Any:
        seen[captured.name] = captured
        return run_graph(captured)

    train_module(Classifier().train(), args, kwargs, compile_graph, name="c")
    assert seen.keys() == {"c.forward", "c.backward"} == {forward.name, backward.name}
    assert targets(seen["c.forward"]) == targets(forward)
    assert targets(seen["c.backward"]) == targets(backward)
    assert {source.kind for source in backward.inputs} == {"saved"}
    assert forward.visible is not None
    assert len(forward.visible) < len(forward.outputs)


def test_parameters_that_a_backward_graph_reads_are_known_to_stay(halves: Halves) -> None:
    """Layers that share a program are told apart by them, in both graphs."""
    forward, backward = halves.forward, halves.backward
    fixed = {backward.placeholders[k].name for k in interest_of(backward).fixed}
    assert {"primals_1", "permute_3", "permute_7"} <= fixed, "of the convolution, the head and the tied projection"
    assert fixed.isdisjoint({"primals_15", "primals_16", "convolution", "rsqrt", "tangents_1"})
    assert len(interest_of(forward).fixed) == 14, "parameters and buffers, the tied weight once"


def test_results_of_a_half_of_dense_tensors_are_saved_or_gradients(halves: Halves) -> None:
    """CUDA graphs that the user asks for let results of inference go at the next call, but not these."""
    for name in ("c.backward", "c.forward.inference", "c.backward[s7=8].inference"):
        assert interest_of(replace(halves.backward, name=name)).guards(0, choice=True)
    assert not interest_of(replace(halves.backward, name="c.inference")).guards(0, choice=True)


@pytest.mark.parametrize("frees", [True, False])
def test_gradients_of_results_are_held_where_autograd_holds_them(
    halves: Halves, frees: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captured, "FREES_GRADIENTS", frees)
    backward = halves.backward
    buffers = {buffer.name: buffer for buffer in fusion_problem(backward, "h200").instance.buffers}
    assert [buffers[name].donated for name in ("tangents_1", "tangents_2")] == [frees, frees]
    assert buffers["convolution"].donated


def test_nothing_is_computed_on_the_data(halves: Halves) -> None:
    assert_same(dict(halves.model.state_dict()), halves.before)
    assert all(parameter.grad is None for parameter in halves.model.parameters())


def test_norms_softmax_and_losses_come_apart(halves: Halves) -> None:
    forward, backward = halves.forward, halves.backward
    operators = {name.split(".")[1] for name in targets(forward) + targets(backward) if name.startswith("aten.")}
    apart = ("norm", "softmax", "gelu", "silu", "nll", "dropout", "scatter", "_backward")
    whole = {"convolution_backward"}
    assert {name for name in operators - whole if any(part in name for part in apart)} == set()
    assert whole < operators


class Attention(nn.Module):
    """Causal attention, with the mask written down."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.masked = masked

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mask = torch.ones(5, 5, dtype=torch.bool).tril() if self.masked else None
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=not self.masked)


@pytest.mark.spread(2)
@pytest.mark.parametrize("masked", [False, True])
def test_attention_stays_whole_and_loses_its_mask(masked: bool) -> None:
    torch.manual_seed(0)
    model, x = Attention(masked), torch.arange(80.0).sin().reshape(2, 5, 8)
    forward, backward = capture_training(model, (x,))
    for graph in (forward, backward):
        (node,) = [n for n in graph.graph.graph.nodes if "scaled_dot_product" in str(n.target)]
        assert True in node.args  # causal
        assert "attn_mask" not in node.kwargs
        assert "aten.bmm.default" not in targets(graph)
    assert forward.constants == {}

    eager = copied(model)
    train_module(model, (x,), {}, run_graph)(x).square().sum().backward()
    eager(x).square().sum().backward()
    assert_same(gradients(model), gradients(eager))


def test_input_written_in_place_and_view_returned() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            x.add_(1)
            y = x * self.weight
            return x[1:], y, y

    model = Model()
    x = torch.zeros(2, 3)
    step = train_module(model, (x.clone(),), {}, run_graph)
    view, y, again = step(x)
    assert_same(x, torch.ones(2, 3))
    assert view.data_ptr() == x[1:].data_ptr()
    assert_same(y, again)
    (y.sum() + again.sum()).backward()
    assert_same(model.weight.grad, torch.full((3,), 4.0))


def test_dropout_follows_the_seed() -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5)).train()
    x = torch.ones(4, 8)
    step = train_module(model, (x,), {}, run_graph)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(step(x))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    kept = results[0] != 0
    model.zero_grad()
    results[0].sum().backward()
    assert_same(model[0].bias.grad, 2.0 * kept.sum(0))


def test_other_arguments_are_refused() -> None:
    args, kwargs = batch()
    step = train_module(Classifier(), args, kwargs, run_graph, name="c")
    with pytest.raises(CaptureError, match=r"c was captured for args\[0\] of shape \(2, 3, 8, 8\), not \(1, 3, 8, 8\)"):
        step(args[0][:1], args[1], **kwargs)
    with pytest.raises(CaptureError, match=r"the value 0\.5"):
        step(*args, scale=1.0)


@pytest.mark.slow
def test_frozen_parameters_need_no_gradient() -> None:
    model = Classifier().train()
    model.conv.requires_grad_(False)
    args, kwargs = batch()
    step = train_module(model, args, kwargs, run_graph)
    step(*args, **kwargs)["loss"].backward()
    assert model.conv.weight.grad is None
    assert model.head.weight.grad is not None


def test_a_tied_weight_is_one_input_whatever_name_is_used() -> None:
    forward, _ = capture_training(Classifier().train(), *batch(), name="classifier")
    names = [source.target for source in forward.inputs if source.kind == "parameter"]
    tied = {"project.weight", "again.weight"}
    assert len(tied.intersection(names)) == 1
    assert {"project.bias", "again.bias"} <= set(names)
