"""Values that consumers recompute: which are inlined, that results stay, and that no schedule is dearer."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from optfuse.compiler.extract.extraction import extract
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.tracing.inference import capture
from optfuse.compiler.ir.interpreter import interpret
from optfuse.compiler.ir.nodes import LoopGraph, LoopNest
from optfuse.compiler.ir.verify_graph import verify
from optfuse.compiler.simplify.inline_cheap import inline_cheap
from optfuse.compiler.stages import lowered
from optfuse.problem.device_files import load_device
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.solve import solve
from tests.compiler.extract.functions import model

DEVICE = load_device("h200")
SHAPE = (6, 4, 64, 96)


def names(graph: LoopGraph) -> set[str]:
    return {op.name for op in graph.ops if isinstance(op, LoopNest)}


def batch_norm_gradient(grad: Tensor, x: Tensor, mean: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """Two sums over all but the channels and the gradient of the input, all of the same difference."""
    channels = (0, 2, 3)
    difference = x.float() - mean[:, None, None]
    share = (grad.float() * difference).sum(channels)
    return share, (grad.float() - difference * share[:, None, None]) * weight[:, None, None]


def rows(x: Tensor, mean: Tensor) -> tuple[Tensor, ...]:
    """The difference seen as it is, transposed, cut in two and flattened."""
    difference = x.float() - mean[..., None]
    half = x.shape[-1] // 2
    turned = difference[..., half:] * difference[..., :half]
    return difference.sum(-1), difference.transpose(1, 2) * 2, turned, difference.flatten().exp().view(-1, half) + 1


def masks(x: Tensor) -> tuple[Tensor, ...]:
    """A mask by position links its three users, which share no tensor."""
    index = torch.arange(x.shape[-1])
    allowed = (index[:, None] >= index[None, : x.shape[-2]]).float()
    return tuple(x[k] * allowed.T for k in range(3))


def gated(function: Any) -> Any:
    """A function whose result is read before a product, and again by what follows from it."""

    def run(x: Tensor, weight: Tensor) -> Tensor:
        gate = function(x.float())
        return (x * gate).to(x.dtype) @ weight * gate

    return run


def beside(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    gate = torch.sigmoid(x.float())
    return x @ weight, gate * 2, gate + 1


CASES = {
    "batch norm": (batch_norm_gradient, [SHAPE, SHAPE, (4,), (4,)], torch.bfloat16, True),
    "rows": (rows, [SHAPE, SHAPE[:-1]], torch.bfloat16, True),
    "channels last": (batch_norm_gradient, [(6, 64, 96, 4), (6, 64, 96, 4), (4,), (4,)], torch.bfloat16, True),
    "masks": (masks, [(3, 256, 256)], torch.float32, True),
    "wider operands": (lambda x, y: ((x + y).sum(0), (x + y) * 2), [SHAPE, SHAPE], torch.float32, False),
    "special functions": (lambda x: (x.exp().sum(0), x.exp() * 2), [SHAPE], torch.float32, False),
    "a gate before and after a product": (gated(torch.sigmoid), [(256, 512), (512, 512)], torch.bfloat16, True),
    "a dear gate before and after a product": (
        gated(lambda x: torch.lgamma(x * x + 1)),
        [(256, 512), (512, 512)],
        torch.bfloat16,
        False,
    ),
    "a gate beside a product": (beside, [(256, 512), (512, 512)], torch.bfloat16, False),
    "half results": (lambda x: ((x * 2).sum(0), (x * 2).exp()), [SHAPE], torch.bfloat16, None),
    "returned": (lambda x: (x * 2, (x * 2).sum(0), (x * 2).sum(1)), [SHAPE], torch.float32, False),
    "small": (lambda x: ((x * 2).sum(0), (x * 2).sum(1)), [(16, 16)], torch.float32, False),
    "one reader": (lambda x: (x * 2).sum(0), [SHAPE], torch.float32, False),
}


def tensors_of(case: str) -> tuple[Any, list[Tensor]]:
    function, shapes, dtype, _ = CASES[case]
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    if case == "channels last":
        tensors = [x.movedim(-1, 1) if x.dim() == 4 else x for x in tensors]
    return function, tensors


@cache
def captured_of(case: str) -> Captured:
    function, tensors = tensors_of(case)
    return capture(model(function), tuple(tensors), {}, name="model")


@pytest.mark.spread(3)
@pytest.mark.parametrize("case", CASES)
def test_results_are_the_same_to_the_bit(case: str) -> None:
    captured, (_, tensors) = captured_of(case), tensors_of(case)
    graph = lowered(captured)
    again = inline_cheap(graph)
    verify(again)
    before, after = (interpret(g, tensors, captured.constants) for g in (graph, again))
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("case", [case for case in CASES if CASES[case][3] is not None])
def test_what_is_inlined(case: str) -> None:
    graph = lowered(captured_of(case))
    assert (names(inline_cheap(graph)) < names(graph)) is CASES[case][3]


@pytest.mark.spread(3, 1)
@pytest.mark.parametrize("case", CASES)
def test_the_best_schedule_is_no_dearer_in_bytes(case: str) -> None:
    graph = lowered(captured_of(case))
    options = SolveOptions(time_limit=10, workers=1)
    before, after = (solve(extract(g, DEVICE).instance, options) for g in (graph, inline_cheap(graph)))
    assert before.status == after.status == "OPTIMAL"
    assert after.objective <= before.objective


def test_a_value_of_something_overwritten_later_is_kept() -> None:
    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.zeros(SHAPE))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            doubled = self.state * 2
            self.state.copy_(x)
            return doubled.sum(0), doubled.sum(1)

    graph = lowered(capture(Shift(), (torch.ones(SHAPE),), {}, name="shift"))
    assert names(inline_cheap(graph)) == names(graph)
