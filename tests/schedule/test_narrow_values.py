"""Masks and indices that a training step may save in place of what they come from: prices, and gradients under caps."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import optfuse
from optfuse.compiler.frontend.aot_autograd.aot import Program, as_traced
from optfuse.compiler.frontend.aot_autograd.joint import Choice, JointStep
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.tracing.training import capture_step, train_module
from optfuse.compiler.stages import fusion_problem
from optfuse.problem.cost import MIB
from optfuse.problem.device_files import load_device
from optfuse.schedule.saving import SavingSearch
from optfuse.schedule.saving_problem import saving_problem
from optfuse.solver.control.options import SolveOptions


class Images(nn.Module):
    """Convolutions with norms, an activation, pooling, and a loss that leaves some targets out."""

    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.activation = activation
        self.convolutions = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = self.activation(norm(convolution(x)))
        x = F.max_pool2d(x, 3, 2, 1).flatten(2).transpose(1, 2).flatten(0, 1)
        return F.cross_entropy(x, torch.arange(x.shape[0], device=x.device) % 9 - 1, ignore_index=-1)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "hardswish": F.hardswish,
    "leaky_relu": F.leaky_relu,
    "threshold": lambda x: F.threshold(x, 0.25, 0.0),
}
X = torch.randn(4, 8, 16, 16, generator=torch.Generator().manual_seed(0))


def masks_alone(step: JointStep) -> Choice:
    """The choice that saves every value of one byte an element, and of others what cannot be computed again."""
    narrow = {value.name for value in step.values if value.bytes and value.bytes == value.elements}
    drawn = {value.name for value in step.values if not value.repeatable and value.in_forward}
    return Choice(frozenset(narrow | drawn), frozenset(value.name for value in step.values) - narrow - drawn)


def masks_again(step: JointStep) -> Choice:
    """The choice that saves all values but those of one byte an element, which come from them."""
    kept = {value.name for value in step.values if value.bytes != value.elements and not value.is_view and value.bytes}
    return Choice(frozenset(kept), frozenset(value.name for value in step.values) - kept)


def errors(model: nn.Module, steps: list[Callable[[Tensor], Tensor]]) -> list[Tensor]:
    """By step, the largest error of a gradient beside float64, as a share of the largest gradient."""
    exact = copy.deepcopy(model).double()
    wanted = torch.autograd.grad(exact(X.double()), list(exact.parameters()))
    found: list[Tensor] = []
    for step in steps:
        got = torch.autograd.grad(step(X), list(model.parameters()))
        pairs = zip(got, wanted, strict=True)
        found.append(torch.stack([(ours - right).abs().max() / right.abs().max() for ours, right in pairs]).max())
    return found


@pytest.mark.spread(10, 1)
@pytest.mark.parametrize("choose", [masks_alone, masks_again])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradients_by_saved_masks_are_those_of_float64(name: str, choose: Callable[[JointStep], Choice]) -> None:
    torch.manual_seed(0)
    model = Images(ACTIVATIONS[name]).train()
    kept: list[torch.dtype] = []

    def compile_graph(captured: Captured) -> Program:
        if captured.name.endswith("backward"):
            kept.extend(node.meta["val"].dtype for node in captured.placeholders if node.meta["val"].dim() == 4)
        return as_traced(captured)

    eager, ours = errors(model, [model, train_module(model, (X,), {}, compile_graph, choose=choose)])
    assert (torch.bool in kept) == (choose is masks_alone)
    assert ours <= 4 * eager


@pytest.mark.slow
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradients_under_a_tight_cap_are_those_of_float64(name: str) -> None:
    torch.manual_seed(0)
    model = Images(ACTIVATIONS[name]).train()
    search, peaks = SavingSearch("h200", SolveOptions(time_limit=5, workers=1)), list[int]()

    def choose(step: JointStep) -> Choice | None:
        peaks.extend(proposal.peak_bytes for proposal, _ in search.sweep(step, 2))
        return None

    capture_step(copy.deepcopy(model), (X,), {}, name="step", choose=choose)
    options = SolveOptions(time_limit=5, peak_memory=min(peaks))
    eager, ours = errors(model, [model, optfuse.optimize(model, (X,), train=True, options=options).compile()])
    assert ours <= 4 * eager


def test_a_mask_of_a_librarys_result_costs_a_kernel_that_reads_it() -> None:
    """ReLU goes into the first product, so that no loop of the forward graph has its result in registers."""

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.narrow = nn.Linear(64, 256, bias=False), nn.Linear(256, 64, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.narrow(torch.relu(self.wide(x))).square()

    device, rows = load_device("h200"), 4096
    prices: dict[str, int] = {}

    def choose(step: JointStep) -> Choice | None:
        halves = step.halves(None)
        problems = [fusion_problem(half, "h200") for half in halves]
        prices.update((value.name, value.save_ps) for value in saving_problem(step, halves, problems, device).values)
        return None

    model = Wide().to(torch.bfloat16).train()
    capture_step(model, (torch.randn(rows, 64, dtype=torch.bfloat16),), {}, name="step", choose=choose)
    (mask,) = (ps for name, ps in prices.items() if name.startswith("le"))
    assert mask == device.launch_ps + (1 + 2) * rows * 256 * device.dram_ps_per_mib // MIB
