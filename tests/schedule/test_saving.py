"""What a training step saves: the search over choices, its caps and bounds, and that the step stays right."""

from __future__ import annotations

import copy
import logging
import re
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import optfuse
from optfuse.compiler.frontend.aot_autograd.joint import Choice, JointStep
from optfuse.compiler.frontend.dynamo_backend import make_backend
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.tracing.training import capture_step
from optfuse.errors import CaptureError, InfeasibleError, InvalidOptionError
from optfuse.problem.device_files import load_device
from optfuse.schedule.checkpoint_price import CheckpointPrice
from optfuse.schedule.saving import SavingSearch
from optfuse.schedule.step_saving import Proposal
from optfuse.solver.control.options import SolveOptions


class Layer(nn.Module):
    """Normalization, attention and a wide feed-forward part, each with a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(rows, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, length, width))
        return x + self.narrow(F.gelu(self.wide(self.second(x))))


class Model(nn.Module):
    """Some layers, and a loss."""

    def __init__(self, layers: int = 2, width: int = 16, drop: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.drop(layer(x))
        return x.square().mean()


class Checkpointed(Model):
    """The model whose layers keep their inputs alone."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(lambda x, layer=layer: self.drop(layer(x)), x, use_reentrant=False)
        return x.square().mean()


OPTIONS = SolveOptions(time_limit=2, workers=1)


def searched(model: nn.Module, x: Tensor, **options: Any) -> SavingSearch:
    """The search for a step of the model, after it."""
    search = SavingSearch("h200", SolveOptions(time_limit=2, workers=1, **options))
    capture_step(model, (x,), {}, name="step", choose=search)
    return search


@pytest.mark.slow
def test_fewer_bytes_cost_more_time_and_every_step_is_above_the_bound() -> None:
    torch.manual_seed(0)
    front = optfuse.saving_front(Model().train(), (torch.randn(8, 32, 16),), points=3, options=OPTIONS)
    assert front["choice"][0] == "fewest bytes"
    chosen = front[1:].sort_values("saved_bytes")
    assert len(chosen) >= 2
    assert (front["objective"] >= front["bound"]).all()
    assert (front["bound"] > 0).all()
    assert chosen["objective"].is_monotonic_decreasing
    assert chosen["peak_memory_bytes"].iloc[0] < chosen["peak_memory_bytes"].iloc[-1]
    for saved, size in zip(front["saved"], front["saved_bytes"], strict=True):
        assert sum(value.bytes for value in saved) == size
        assert {value.module.split(".")[0] for value in saved} <= {"layers", "drop", ""}
    assert any(value.module.startswith("layers.1") for value in front["saved"][0])


@pytest.mark.slow
def test_a_step_within_a_cap_has_eagers_gradients_and_keeps_the_cap() -> None:
    torch.manual_seed(0)
    model = Model(layers=1).train()
    eager = copy.deepcopy(model)
    x = torch.randn(8, 32, 16)
    free = searched(model, x).found
    assert free is not None
    apart = free.workspace_bytes
    assert apart == 2 * load_device("h200").workspace_bytes > 0
    cap = apart + int(0.9 * (free.proposals[0].peak_bytes - apart))
    schedule = optfuse.optimize(model, (x,), train=True, options=SolveOptions(time_limit=2, peak_memory=cap))
    assert isinstance(schedule, optfuse.TrainingSchedule)
    assert schedule.saving is not None
    assert schedule.saving.chosen.peak_bytes <= cap
    for half in schedule:
        unseen = schedule.saving.unseen_bytes[half.name.rpartition(".")[2]]
        assert half.solution.peak_bytes + unseen <= cap
    for step in (schedule.compile(), schedule.compile()):  # the second one traces the model again
        model.zero_grad()
        eager.zero_grad()
        loss, wanted = step(x), eager(x)
        torch.testing.assert_close(loss, wanted)
        loss.backward()
        wanted.backward()
        for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_a_cap_that_no_step_keeps_is_one_line_with_the_least_peak() -> None:
    model, x = Model(layers=1, width=64).train(), torch.randn(8, 32, 64)
    said = (
        r"step: no training step was found within peak_memory of 0\.0 MiB; the least peak that was found is (\S+) MiB, "
    )
    with pytest.raises(InfeasibleError, match=said + "and none is below .* raise the cap") as caught:
        searched(model, x, peak_memory=1000)
    found, floor, held = (float(number) for number in re.findall(r"([\d.]+) MiB", str(caught.value))[1:])
    given = sum(p.numel() * p.element_size() for p in (*model.parameters(), x)) / (1 << 20)
    assert held == pytest.approx(64 + given, abs=0.1)
    assert held + 0.1 < floor <= found < 2 * held


@pytest.mark.slow
def test_an_optimizers_state_takes_room_of_the_cap() -> None:
    model, x = Model(layers=1).train(), torch.randn(8, 32, 16)
    frozen = next(model.parameters())
    frozen.requires_grad_(requires_grad=False)
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    plain, adam = searched(model, x).found, searched(model, x, optimizer_states=2).found
    assert plain is not None
    assert adam is not None
    assert adam.proposals[0].peak_bytes - plain.proposals[0].peak_bytes == 2 * trained
    cap = plain.chosen.peak_bytes
    with pytest.raises(InfeasibleError, match="the least peak that was found is"):
        searched(model, x, optimizer_states=100, peak_memory=cap)


@pytest.mark.parametrize("states", [-1, 1.5, "two"])
def test_a_number_of_states_is_whole(states: object) -> None:
    with pytest.raises(InvalidOptionError, match="optimizer_states must be a whole number of at least 0"):
        SolveOptions(optimizer_states=states)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_captured_step_obeys_checkpointed_regions() -> None:
    torch.manual_seed(0)
    model, x = Checkpointed(layers=1).train(), torch.randn(8, 32, 16)
    eager = copy.deepcopy(model)
    schedule = optfuse.optimize(model, (x,), train=True, options=OPTIONS)
    plain = optfuse.optimize(Model(layers=1).train(), (x,), train=True, options=OPTIONS)
    assert isinstance(schedule, optfuse.TrainingSchedule)
    assert isinstance(plain, optfuse.TrainingSchedule)
    assert len(schedule.backward.instance.ops) > len(plain.backward.instance.ops)
    assert schedule.backward.instance.buffers != plain.backward.instance.buffers
    loss, wanted = schedule.compile()(x), eager(x)
    loss.backward()
    wanted.backward()
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_what_checkpointed_regions_save_is_not_searched_for() -> None:
    model, x = Checkpointed(layers=1).train(), torch.randn(2, 8, 16)
    with pytest.raises(CaptureError, match="its checkpointed regions say what is saved"):
        optfuse.saving_front(model, (x,), points=2, options=OPTIONS)


@pytest.mark.slow
def test_checkpointed_regions_are_priced() -> None:
    """Beside the same step of a model without regions, which is what the price is against."""
    x = torch.randn(64, 32, 16)
    schedule, plain = (
        optfuse.optimize(model.train(), (x,), train=True, options=OPTIONS)
        for model in (Checkpointed(layers=3), Model(layers=3))
    )
    assert isinstance(schedule, optfuse.TrainingSchedule)
    assert isinstance(plain, optfuse.TrainingSchedule)
    price = schedule.checkpoint_price(options=OPTIONS)
    assert price is not None
    assert price.regions == 3
    assert price.obeyed.objective == schedule.forward.objective + schedule.backward.objective
    assert price.free.objective == plain.forward.objective + plain.backward.objective
    assert price.slowdown > 0
    assert 0 < price.saved_bytes == price.free.peak_bytes - price.obeyed.peak_bytes
    assert price.obeyed.saved_bytes < price.free.saved_bytes
    mib = price.saved_bytes / (1 << 20)
    assert str(price) == (
        f"the 3 checkpointed regions cost {price.slowdown:+.1%} of the step's time and save {mib:,.1f} MiB of its "
        "peak memory"
    )
    assert plain.checkpoint_price(options=OPTIONS) is None


def test_a_price_counts_what_shared_launches_save() -> None:
    obeyed, free = Proposal("regions", 1_100, 0, 10, (), shared_ps=200), Proposal("free", 1_000, 0, 20, ())
    assert CheckpointPrice(1, obeyed, free).slowdown == pytest.approx(-0.1)


@pytest.mark.slow
def test_a_cap_counts_the_whole_step_of_checkpointed_regions() -> None:
    model, x = Checkpointed().train(), torch.randn(8, 32, 16)
    free = searched(model, x).found
    assert free is not None
    assert [one.name for one in free.proposals] == ["as the model says"]
    assert free.choice is None
    assert 0 <= free.gap < 1
    kept = searched(model, x, peak_memory=free.chosen.peak_bytes).found
    assert kept is not None
    left = free.chosen.peak_bytes - free.unseen_bytes["backward"]
    assert left < kept.apart_bytes["backward"], "a result takes the place of another value"
    assert kept.options_of(OPTIONS, "backward").peak_bytes == kept.apart_bytes["backward"]
    with pytest.raises(InfeasibleError, match="with the regions that the model checkpoints its peak is"):
        searched(model, x, peak_memory=int(0.9 * free.chosen.peak_bytes))


@pytest.mark.slow
def test_checkpointed_regions_are_priced_under_torch_compile(caplog: pytest.LogCaptureFixture) -> None:
    torch._dynamo.reset()  # noqa: SLF001 - its public face
    caplog.set_level(logging.INFO, logger="optfuse")
    before = len(optfuse.compiled_graphs())
    options = {"time_limit": 2, "checkpoint_price": True, "cache": False, "share_launches": False}
    torch.compile(Checkpointed(layers=1).train(), backend="optfuse", options=options)(torch.randn(2, 8, 16)).backward()
    forward, backward = optfuse.compiled_graphs()[before:]
    assert forward.checkpoints is None
    price = backward.checkpoints
    assert price is not None
    assert price.regions == 1
    assert price.obeyed.saved_bytes < price.free.saved_bytes
    assert price.obeyed.objective / 1e6 == pytest.approx(forward.predicted_us + backward.predicted_us)
    assert str(price) in caplog.text


def test_a_checkpoint_with_a_policy_is_refused() -> None:
    class Selective(Model):
        def forward(self, x: Tensor) -> Tensor:
            policy = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False, context_fn=policy)
            return x.square().mean()

    with pytest.raises(CaptureError, match=r"the checkpoint of Layer has a context_fn.*use torch.compile"):
        optfuse.optimize(Selective(layers=1).train(), (torch.randn(2, 8, 16),), train=True, options=OPTIONS)


def test_checkpointed_regions_are_split_as_they_say() -> None:
    asked: list[JointStep] = []
    compiled: list[str] = []

    def compile_graph(captured: Captured) -> Any:
        compiled.append(captured.name)
        return lambda inputs: captured.graph(*inputs)

    torch._dynamo.reset()  # noqa: SLF001 - its public face
    for model in (Checkpointed(layers=1).train(), Model(layers=1).train()):
        fast = torch.compile(model, backend=make_backend(compile_graph, choose=asked.append))
        fast(torch.randn(2, 8, 16)).backward()
    assert [(step.regions, bool(step.values)) for step in asked] == [(1, False), (0, True)]
    assert len(compiled) == 4


def test_random_draws_are_made_again_from_their_seed() -> None:
    compiled: list[Captured] = []

    def compile_graph(captured: Captured) -> Any:
        compiled.append(captured)
        return lambda inputs: captured.graph(*inputs)

    def seed_alone(step: JointStep) -> Choice:
        kept = frozenset(value.name for value in step.values if not value.repeatable and value.in_forward)
        return Choice(kept, frozenset(value.name for value in step.values) - kept)

    def gradients(kind: type[Model], choose: Any) -> list[Tensor]:
        torch.manual_seed(0)
        model, x = kind(layers=1, drop=0.3).train(), torch.randn(4, 8, 16)
        torch._dynamo.reset()  # noqa: SLF001 - its public face
        torch.compile(model, backend=make_backend(compile_graph, choose=choose))(x).backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    ours, fewest = gradients(Model, seed_alone), gradients(Model, lambda _: None)
    regions = gradients(Checkpointed, None)
    backward = [half for half in compiled if half.name.endswith("backward")]
    drawn = [[n for n in half.graph.graph.nodes if "seeded_random" in str(n.target)] for half in backward]
    assert [len(nodes) for nodes in drawn] == [1, 0, 1]
    for one, other, third in zip(ours, fewest, regions, strict=True):
        torch.testing.assert_close(one, other)
        torch.testing.assert_close(third, other)


@pytest.mark.parametrize("drop", [0.2, 0.0])
@pytest.mark.slow
def test_through_torch_compile(drop: float) -> None:
    torch._dynamo.reset()  # noqa: SLF001 - its public face
    torch.manual_seed(0)
    model = Model(layers=1, drop=drop).train()
    other = copy.deepcopy(model)
    x = torch.randn(8, 32, 16)
    start = searched(model, x).found
    assert start is not None
    cap = start.workspace_bytes + int(0.95 * (start.proposals[0].peak_bytes - start.workspace_bytes))
    # the same draws in both: random numbers are other ones than eager's
    for module, options in ((model, {"peak_memory": cap}), (other, {"saving": "fewest"})):
        torch.manual_seed(1)
        torch.compile(module, backend="optfuse", options={"time_limit": 2, **options})(x).backward()
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-6)


def test_an_unknown_mode() -> None:
    with pytest.raises(InvalidOptionError, match="saving must be one of auto, fewest, search, not 'most'"):
        optfuse.optimize(Model(), (torch.randn(1, 2, 16),), train=True, saving="most")  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_bound_counts_reads_of_forward_values() -> None:
    """Convolutions, each with a batch norm: nearly all of backward's traffic is what forward computed."""

    class Convolutions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [(nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()) for _ in range(3)]
            self.layers = nn.Sequential(*(part for layer in layers for part in layer))

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x).square().mean()

    found = searched(Convolutions().train(), torch.empty(64, 32, 112, 112)).found
    assert found is not None
    assert 0 <= found.gap < 0.05


class Words(nn.Module):
    """A table of more rows than there are words, some of which are the same, with a product behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4096, 512)
        self.head = nn.Linear(512, 512)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.table(words)).square().sum()


def test_what_a_gpu_may_compute_in_one_way_or_another_is_computed_once() -> None:
    """The word that stands for all equal ones is any of them: a second look may find another, and lose gradients."""
    compiled: list[Captured] = []

    def compile_graph(captured: Captured) -> Any:
        compiled.append(captured)
        return lambda inputs: captured.graph(*inputs)

    def all_small(step: JointStep) -> Choice:
        saved = frozenset(v.name for v in step.values if v.in_forward or (v.bytes or 1 << 30) < 1 << 14)
        return Choice(saved, frozenset(value.name for value in step.values) - saved)

    torch._dynamo.reset()  # noqa: SLF001 - its public face
    words = torch.arange(64) % 40
    torch.compile(Words().train(), backend=make_backend(compile_graph, choose=all_small))(words).backward()
    puts = [[n for n in half.graph.graph.nodes if "index_put" in str(n.target)] for half in compiled]
    assert sorted(map(len, puts)) == [0, 1]


def test_a_single_value_at_places_may_be_computed_again() -> None:
    found: dict[str, bool] = {}

    def look(step: JointStep) -> None:
        found.update({value.name: value.repeatable for value in step.values if "index_put" in value.name})

    def puts(x: Tensor, places: Tensor, values: Tensor) -> Tensor:
        one = torch.index_put(x, [places], torch.zeros((), device=x.device))
        return torch.index_put(one, [places], values).exp().sum()

    torch._dynamo.reset()  # noqa: SLF001 - its public face
    inputs = torch.randn(8, requires_grad=True), torch.tensor([1, 1]), torch.randn(2)
    torch.compile(puts, backend=make_backend(lambda captured: lambda given: captured.graph(*given), choose=look))(
        *inputs
    )
    assert found == {"index_put": True, "index_put_1": False}
