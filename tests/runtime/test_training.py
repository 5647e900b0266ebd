"""``optimize(..., train=True)``: a step's forward and backward schedules, as a function like the model."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import optfuse
from optfuse.errors import CaptureError, PlanError
from optfuse.runtime.environment import mode
from tests.oracle.judging import OPTIONS, Function, check

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + 5))


def trained(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return optfuse.optimize(model, args, kwargs, train=True, options=OPTIONS, name="net").compile()


class Classifier(nn.Module):
    """Convolution, batch norm, pooling, a tied projection, a layer norm and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.project, self.again = nn.Linear(6, 6), nn.Linear(6, 6)
        self.again.weight = self.project.weight
        self.layer_norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Any]:
        hidden = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2).mean((2, 3))
        hidden = F.gelu(self.again(F.silu(self.project(hidden)))) + hidden
        logits = self.head(self.layer_norm(hidden))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits, "nothing": None}


@pytest.fixture
def classifier() -> Classifier:
    torch.manual_seed(0)
    return Classifier().train()


def test_step(classifier: Classifier) -> None:
    check(classifier, randn(4, 3, 8, 9), torch.tensor([1, 2, -100, 4]), train=True)


@pytest.mark.slow
def test_steps_with_an_optimizer(classifier: Classifier) -> None:
    other = copy.deepcopy(classifier)
    x, labels = randn(4, 3, 8, 9), torch.tensor([1, 2, 0, 4])
    step = trained(classifier, x, labels)
    losses: list[list[float]] = []
    for function, module in ((step, classifier), (other, other)):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        losses.append([])
        for _ in range(4):
            optimizer.zero_grad()
            loss = function(x, labels)["loss"]
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0][-1] < losses[0][0]
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=1e-4, atol=1e-5)
    assert classifier.norm.num_batches_tracked == 4
    for (name, a), b in zip(classifier.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.slow
def test_two_schedules_with_certificates(classifier: Classifier) -> None:
    schedule = optfuse.optimize(
        classifier, (randn(4, 3, 8, 9), torch.tensor([1, 2, 0, 4])), train=True, options=OPTIONS, name="net"
    )
    assert [half.name for half in schedule] == ["net.forward", "net.backward"]
    for half, record in zip(schedule, schedule.summary(), strict=True):
        assert half.bound <= half.objective <= half.greedy_objective
        assert record["name"] == half.name
    assert "aten.convolution_backward.default" in schedule.backward.library_ops
    with pytest.raises(PlanError, match="half of a training step"):
        schedule.forward.compile()


def test_inputs_that_need_gradients() -> None:
    model = nn.Bilinear(4, 3, 2)
    torch.manual_seed(0)
    check(model, randn(5, 4).requires_grad_(), randn(5, 3).requires_grad_(), train=True)


def test_frozen_and_unused_parameters() -> None:
    model, x = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), randn(5, 4)
    model[0].requires_grad_(False)
    model.unused = nn.Parameter(torch.ones(3))
    trained(model, x)(x).square().sum().backward()
    assert model[0].weight.grad is None
    assert model.unused.grad is None
    assert model[1].weight.grad is not None
    with pytest.raises(CaptureError, match="requires a gradient"):
        trained(model.requires_grad_(False), x)


def test_several_outputs_with_gradients_of_their_own() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(randn(4))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            y = (x * self.weight).tanh()
            return y, y.sum(0), y.detach() * 2

    check(Pair(), randn(3, 4), train=True)
    model = Pair()
    x = randn(3, 4)
    step = trained(model, x)
    step(x)[1].sum().backward()  # the other output gets no gradient
    wanted = copy.deepcopy(model)
    wanted.zero_grad()
    wanted(x)[1].sum().backward()
    torch.testing.assert_close(model.weight.grad, wanted.weight.grad)


def test_gradients_accumulate() -> None:
    model = nn.Linear(4, 3)
    x = randn(5, 4)
    step = trained(model, x)
    step(x).sum().backward()
    once = model.weight.grad.clone()
    step(x).sum().backward()
    torch.testing.assert_close(model.weight.grad, 2 * once)


def test_input_written_in_place() -> None:
    class Writer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(randn(3))
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x.add_(1)
            self.total += x.sum(0)
            return x * self.weight, self.total * self.weight

    check(Writer(), randn(4, 3), train=True)


class Dropper(nn.Module):
    """Dropout around a nonlinearity, with a parameter on either side."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.before, self.after = nn.Parameter(torch.ones(50)), nn.Parameter(torch.ones(50))
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x * self.before, self.rate) * self.after


@pytest.mark.spread(3)
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout(rate: float) -> None:
    model = Dropper(rate)
    x = randn(200, 50).abs() + 0.5
    step = trained(model, x)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(step(x))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert not torch.equal(step(x), results[2])

    kept = results[2] != 0
    share = kept.float().mean().item()
    assert abs(share - (1 - rate)) < 5 * (rate * (1 - rate) / kept.numel()) ** 0.5
    scale = 1 / (1 - rate)
    torch.testing.assert_close(results[2][kept], (x * scale)[kept])
    per_row = kept.float().mean(1)
    assert per_row.std() < 3 * (rate * (1 - rate) / 50) ** 0.5, "rows differ more than chance allows"

    results[2].sum().backward()
    wanted = (x * kept * scale).sum(0)
    torch.testing.assert_close(model.before.grad, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.after.grad, wanted, rtol=1e-4, atol=1e-4)


def test_two_dropouts_draw_apart() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(60))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return F.dropout(x * self.weight, 0.5), F.dropout(x * self.weight, 0.5)

    first, second = trained(Twice(), torch.ones(50, 60))(torch.ones(50, 60))
    agree = ((first != 0) == (second != 0)).float().mean().item()
    assert abs(agree - 0.5) < 0.05


def test_a_changed_model_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.GELU())
    schedule = optfuse.optimize(model, (randn(5, 4),), train=True, options=OPTIONS, name="net")
    model[1] = nn.SiLU()
    with pytest.raises(PlanError, match="optimize again"):
        schedule.compile()


def test_other_arguments_are_refused() -> None:
    step = trained(nn.Linear(4, 3), randn(5, 4))
    with pytest.raises(CaptureError, match=r"shape \(5, 4\), not \(2, 4\)"):
        step(randn(2, 4))


def test_functions_train_by_their_inputs() -> None:
    check(Function(lambda x: (x.exp().sum(1).log(), x * 2)), randn(5, 6).requires_grad_(), train=True)


class Biased(nn.Module):
    """Attention with a learned bias, shared keys and an odd head size."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.project = nn.Linear(12, 24)
        self.bias = nn.Parameter(torch.linspace(-1, 1, 4 * 7 * 7).reshape(4, 7, 7))
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        heads = self.project(x).unflatten(-1, (8, 3)).transpose(1, 2)
        query, key, value = heads.split([4, 2, 2], dim=1)
        out = F.scaled_dot_product_attention(query, key, value, self.bias, self.dropout, enable_gqa=True)
        return out.transpose(1, 2).flatten(2).relu()


def test_attention_with_a_learned_bias() -> None:
    torch.manual_seed(0)
    check(Biased(), randn(2, 7, 12), train=True)


def test_attention_with_dropout_follows_the_seed_and_replays(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Biased(0.5), randn(2, 7, 12)
    schedule = optfuse.optimize(model, (x,), train=True, options=OPTIONS, name="net")
    run = schedule.compile()
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(run(x))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    for half, own, other in (
        (schedule.forward, "def attention(", "def attention_backward("),
        (schedule.backward, "def attention_backward(", "def attention("),
    ):
        assert own in half.source
        assert other not in half.source
        assert not [line for line in half.source.splitlines() if "import" in line and "optfuse" in line]
        half.save(tmp_path / half.name)
        assert optfuse.load(tmp_path / half.name).source == half.source


class Cubed(torch.autograd.Function):
    """An exponential that claims another derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.exp()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 3


def hooked(y: Tensor) -> Tensor:
    """Doubles the gradient that comes through."""
    y.register_hook(lambda grad: grad * 2)
    return y


def checkpointed(y: Tensor, *, reentrant: bool) -> Tensor:
    return checkpoint(torch.exp, y, use_reentrant=reentrant)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (Cubed.apply, "Cubed"),
        (hooked, "the hook <lambda>"),
        (lambda y: checkpointed(y, reentrant=True), "CheckpointFunction"),
    ],
)
def test_gradients_that_a_trace_would_lose_are_refused(function: Any, reason: str) -> None:
    model = nn.Sequential(nn.Linear(4, 3), Function(function))
    with pytest.raises(CaptureError, match=f"{reason}.*torch.compile"):
        trained(model, randn(2, 4))


def test_gradients_of_ones_own_do_not_matter_to_inference() -> None:
    check(nn.Sequential(nn.Linear(4, 3), Function(Cubed.apply)), randn(2, 4))


def test_a_checkpoint_that_changes_no_gradient() -> None:
    check(nn.Sequential(nn.Linear(4, 3), Function(lambda y: checkpointed(y, reentrant=False))), randn(2, 4), train=True)


def test_a_custom_operator_keeps_its_gradient() -> None:
    @torch.library.custom_op("optfuse_tests::shifted", mutates_args=())
    def shifted(x: Tensor) -> Tensor:
        return x + 1

    @shifted.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    shifted.register_autograd(lambda ctx, grad: grad * 3)
    operator = torch.ops.optfuse_tests.shifted
    check(nn.Sequential(nn.Linear(4, 3), Function(operator), nn.GELU()), randn(2, 4), train=True)


def test_sparse_gradients_are_refused_in_one_line() -> None:
    with pytest.raises(CaptureError, match=r"torch\.sparse_coo, which cannot be planned"):
        trained(nn.Embedding(5, 3, sparse=True), torch.tensor([1, 2]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The tensor attributes self:UserWarning")  # of the layer's own list of weights
def test_recurrent_layers() -> None:
    class Last(nn.Module):
        def __init__(self, recurrent: nn.Module) -> None:
            super().__init__()
            self.recurrent = recurrent

        def forward(self, x: Tensor) -> Tensor:
            return self.recurrent(x)[0][:, -1].exp()

    check(Last(nn.GRU(6, 5, batch_first=True)), randn(3, 2, 6), train=True)
    check(Last(nn.LSTM(6, 5, batch_first=True)), randn(3, 4, 6))
    with pytest.raises(CaptureError, match="an LSTM on the CPU"):
        trained(Last(nn.LSTM(6, 5, batch_first=True)), randn(3, 4, 6))
