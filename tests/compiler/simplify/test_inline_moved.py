"""Values that are only moved are computed by the op that moves them: results stay, and no schedule is dearer."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from optfuse.compiler.extract.extraction import extract
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.tracing.inference import capture
from optfuse.compiler.ir.interpreter import interpret
from optfuse.compiler.ir.nodes import LoopGraph, LoopNest
from optfuse.compiler.ir.verify_graph import verify
from optfuse.compiler.simplify.inline_moved import inline_moved
from optfuse.compiler.stages import lowered
from optfuse.problem.device_files import load_device
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.solve import solve
from tests.compiler.extract.functions import graph_of, model

DEVICE = load_device("h200")
SHAPE = (4, 6, 64, 96)


def normalized(x: Tensor, mean: Tensor) -> Tensor:
    """What stands before a convolution that pads on two sides only."""
    return ((x.float() - mean[:, None, None]) * 2 + 1).to(x.dtype).clamp(0, 6)


def halves(x: Tensor) -> Tensor:
    """Rotary position embedding's half turn."""
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half] * 2], -1)


def pairs_backward(gradient: Tensor, sine: Tensor) -> Tensor:
    """The gradient of rotary position embedding's turn of neighbours."""
    x = gradient * sine
    parts = ((-x[..., ::2], 1), (x[..., 1::2], 0))
    one, other = (torch.ops.aten.slice_backward(part, list(SHAPE), 3, place, SHAPE[3], 2) for part, place in parts)
    return one + other


#: What is computed, of which shapes, and how many ops are left of those before.
CASES: dict[str, tuple[Any, list[tuple[int, ...]], int]] = {
    "pad": (lambda x, m: F.pad(normalized(x, m), (0, 1, 0, 1)), [SHAPE, (6,)], 1),
    "pad on both sides": (lambda x, m: F.pad(normalized(x, m), (3, 1, 2, 0), value=-1.5), [SHAPE, (6,)], 1),
    "crop": (lambda x, m: F.pad(normalized(x, m), (-3, 1, -2, -5)), [SHAPE, (6,)], 1),
    "pad of a pad": (lambda x: F.pad(F.pad(x * 2, (1, 2)).exp(), (0, 0, 3, 1)).sin(), [SHAPE], 2),
    "slice": (lambda x: x.exp()[:, 1:, ::2] * 2, [SHAPE], 1),
    "turned": (halves, [SHAPE], 1),
    "pairs turned back": (pairs_backward, [SHAPE, SHAPE[2:]], 3),
    "rolled": (lambda x: torch.roll(x.exp() * 2, (3, 5), (2, 3)), [SHAPE], 1),
    "channels last": (lambda x, m: F.pad(normalized(x, m), (0, 1, 0, 1)), [SHAPE, (6,)], 1),
    "reduced": (lambda x: F.pad(x.exp(), (1, 1)).amax(-1), [SHAPE], 2),
    "cut in two": (lambda x: (F.pad((y := x.exp())[..., :30], (0, 1)), y[..., 30:] * 2), [SHAPE], 2),
    "cut in two that overlap": (lambda x: (F.pad((y := x.exp())[..., :31], (0, 1)), y[..., 30:] * 2), [SHAPE], 3),
    "two readers": (lambda x: (F.pad(x.exp(), (0, 1)), x.exp() * 2), [SHAPE], 3),
    "returned": (lambda x: (F.pad(y := x.exp(), (0, 1)), y), [SHAPE], 2),
    "of two operands": (lambda x, y: F.pad(x * y, (0, 1)), [SHAPE] * 2, 1),
    "of three operands": (lambda x, y, z: F.pad(x * y + z, (0, 1)), [SHAPE] * 3, 3),
    "of what has other readers": (lambda x, y: (F.pad((t := x.exp()) * y, (0, 1)), t.sum(-1)), [SHAPE] * 2, 4),
    "taken again and again": (lambda x: F.max_pool2d(x.exp(), 3, 1, 1), [SHAPE], 2),
    "repeated": (lambda x: x.exp()[:, :1].expand(SHAPE) * 2, [SHAPE], 2),
    "same points": (lambda x: x.exp().transpose(2, 3).contiguous(), [SHAPE], 2),
    "small": (lambda x: F.pad(x.exp(), (0, 1)), [(16, 16)], 1),
}


def tensors_of(case: str, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in CASES[case][1]]
    return [x.to(memory_format=torch.channels_last) if case == "channels last" and x.dim() == 4 else x for x in tensors]


@cache
def captured_of(case: str, dtype: torch.dtype) -> Captured:
    return capture(model(CASES[case][0]), tuple(tensors_of(case, dtype)), {}, name="model")


def nests(graph: LoopGraph) -> int:
    return sum(isinstance(op, LoopNest) for op in graph.ops)


@pytest.mark.spread(6, 1)
@pytest.mark.parametrize("case", CASES)
def test_results_are_the_same_to_the_bit(case: str) -> None:
    captured, tensors = captured_of(case, torch.float32), tensors_of(case, torch.float32)
    graph = lowered(captured)
    again = inline_moved(graph)
    verify(again)
    assert nests(again) == CASES[case][2]
    before, after = (interpret(g, tensors, captured.constants) for g in (graph, again))
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one, other)


@pytest.mark.spread(6)
@pytest.mark.parametrize("case", CASES)
def test_half_types_are_no_further_from_the_truth(case: str) -> None:
    function, tensors = CASES[case][0], tensors_of(case, torch.bfloat16)
    captured = captured_of(case, torch.bfloat16)
    graph = lowered(captured)
    exact = function(*(x.double() for x in tensors))
    exact = exact if isinstance(exact, tuple) else (exact,)
    again = inline_moved(graph)
    verify(again)  # half types are not computed with, nor chosen between
    before, after = (interpret(g, tensors, captured.constants) for g in (graph, again))
    for truth, one, other in zip(exact, before, after, strict=True):
        assert (other - truth).abs().max() <= 1.01 * (one - truth).abs().max()


@pytest.mark.spread(6, 2)
@pytest.mark.parametrize("case", CASES)
def test_the_best_schedule_is_no_dearer(case: str) -> None:
    graph = lowered(captured_of(case, torch.bfloat16))
    options = SolveOptions(time_limit=10, workers=1)
    before, after = (solve(extract(g, DEVICE).instance, options) for g in (graph, inline_moved(graph)))
    assert before.status == after.status == "OPTIMAL"
    assert after.objective <= before.objective


def test_a_value_of_something_overwritten_later_is_kept() -> None:
    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.zeros(SHAPE))

        def forward(self, x: Tensor) -> Tensor:
            doubled = self.state * 2
            self.state.copy_(x)
            return F.pad(doubled, (0, 1))

    graph = lowered(capture(Shift(), (torch.ones(SHAPE),), {}, name="shift"))
    assert nests(inline_moved(graph)) == nests(graph)


def test_random_numbers_stay_where_they_are_drawn() -> None:
    graph = graph_of(lambda x: F.pad(torch.rand_like(x) * 2, (0, 1)), torch.ones(SHAPE))
    assert nests(inline_moved(graph)) == nests(graph) - 1  # the product goes, what is drawn stays
