"""The bound on a training step under a cap, and the moments at which it counts memory."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from optfuse.compiler.frontend.aot_autograd.joint import Choice, JointStep
from optfuse.compiler.frontend.fake_weights import fake_parameters
from optfuse.compiler.frontend.graph import captured
from optfuse.compiler.frontend.tracing.training import capture_step
from optfuse.schedule.step_search import StepSearch
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.saving.choice import choose_saving

OPTIONS = SolveOptions(time_limit=1, workers=1)


class Classifier(nn.Module):
    """Some layers and a wide head; the scores are returned, so that they have a gradient of their own."""

    def __init__(self, layers: int = 3, width: int = 256, classes: int = 5000) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + F.gelu(layer(norm(x)))
        scores = self.head(x)
        return F.cross_entropy(scores, labels), scores


class Images(nn.Module):
    """Convolutions with batch norms, and pools between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(16 if k else 3, 16, 3, padding=1) for k in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = F.max_pool2d(F.relu(norm(layer(x))), 2)
        return x.square().mean()


def search_of(model: type[nn.Module], options: SolveOptions = OPTIONS) -> StepSearch:
    """The search over what a step saves, of which no proposal but torch's is priced."""
    with fake_parameters():
        module = model().train()
    found: list[StepSearch] = []

    def keep(step: JointStep) -> Choice | None:
        found.append(StepSearch(step, "h200", options))
        return None

    given = (torch.empty(32, 3, 64, 64),) if model is Images else (torch.empty(8192, 256), torch.zeros(8192).long())
    capture_step(module, given, {}, name="step", choose=keep)
    return found[0]


def some_choices(search: StepSearch, count: int) -> None:
    """Price choices that are cheapest by random prices within random numbers of bytes."""
    drawn = random.Random(0)
    for _ in range(count):
        values = [
            replace(value, save_ps=drawn.randrange(1000), again_ps=value.again_ps and drawn.randrange(1000))
            for value in search.problem.values
        ]
        most = max(1, sum(value.bytes or 0 for value in values))
        now = search.clock.now()
        made = choose_saving(values, drawn.randrange(most), OPTIONS, search.clock, now + 1)
        if made is not None:
            names = [value.name for value in values]
            saved, again = (frozenset(names[k] for k in some) for some in (made.saved, made.again))
            search._price("drawn", Choice(saved, again))  # noqa: SLF001 - the choices of a search are not drawn


@pytest.mark.slow
@pytest.mark.parametrize(("model", "frees"), [(Classifier, True), (Classifier, False), (Images, True)])
def test_no_choice_is_cheaper_than_the_bound_at_its_peak(
    model: type[nn.Module], frees: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where autograd holds the gradients of results until the backward graph returns."""
    monkeypatch.setattr(captured, "FREES_GRADIENTS", frees)
    search = search_of(model)
    some_choices(search, 10)
    search.lowest()
    assert len(search.priced) >= 6
    for one in search.priced:
        assert search.bound.within(one.proposal.peak_bytes) <= one.proposal.objective, one.proposal.name


@pytest.mark.slow
def test_gradients_leave_less_room_than_there_is_between_the_halves() -> None:
    search = search_of(Classifier)
    scores = 8192 * 5000 * 4
    assert max(moment.gradients for moment in search.bound.moments) >= 2 * scores, "the gradient given, and that of all"
    search.lowest()
    least = min((one.proposal for one in search.priced), key=lambda one: one.peak_bytes)
    bound = search.bound.within(least.peak_bytes)
    search.bound.moments = ()
    assert search.bound.within(least.peak_bytes) < bound <= least.objective


@pytest.mark.slow
def test_gradients_that_may_be_computed_again_are_not_counted() -> None:
    assert search_of(Images).bound.moments
    assert not search_of(Images, replace(OPTIONS, recompute=True)).bound.moments
