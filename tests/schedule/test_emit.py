"""Emitted programs whose buffers are written in place of others compute the same numbers, bit for bit."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import optfuse
from optfuse.api import Schedule, TrainingSchedule
from optfuse.compiler.frontend.zoo import load_model_file
from optfuse.problem.checker import check
from optfuse.problem.instance import Instance
from optfuse.problem.solution import Kernel, Placement, Solution
from optfuse.runtime.environment import mode
from optfuse.schedule.emit import Memory, emit, held, written_in_place
from optfuse.solver.memory.arena import pack
from optfuse.solver.memory.assemble import arena_spans, arrange
from optfuse.solver.memory.order_problem import order_problem
from tests.oracle.judging import OPTIONS, Function

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")

MODELS = Path(__file__).parents[2] / "models"
GENERATOR = torch.Generator().manual_seed(3)
X = torch.randn(33, 48, generator=GENERATOR)
W = torch.randn(48, 48, generator=GENERATOR) / 7
V = torch.randn(48, generator=GENERATOR)


def pointwise_between_products(x: Tensor, w: Tensor) -> Tensor:
    """Each product's result makes way for what is computed from it."""
    for _ in range(3):
        x = F.gelu(x @ w) * 2
    return x @ w


def rows_between_products(x: Tensor, w: Tensor) -> Tensor:
    """The kernels reduce rows and write over them."""
    x = torch.softmax(x @ w, -1) @ w
    return F.layer_norm(x, x.shape[-1:], V, V) @ w


def other_types(x: Tensor, w: Tensor) -> Tensor:
    """Whole numbers take the place of floats of the same size."""
    ids = ((x @ w) * 100).to(torch.int32)
    return torch.cumsum(ids, 0).float() @ w


def residual(x: Tensor, w: Tensor) -> Tensor:
    """The first product is read again at the end."""
    kept = x @ w
    return (F.gelu(kept) @ w + kept) @ w


def read_twice_at_once(x: Tensor, w: Tensor) -> Tensor:
    """One kernel reads a product as it is and turned: nothing may be written over it."""
    square = x.t() @ x
    return (square.t() * 3 + square) @ w


MEMORIES: tuple[Memory, ...] = ("arena", "apart")
FUNCTIONS = [pointwise_between_products, rows_between_products, other_types, residual]


def schedule_of(function: Callable[..., Any]) -> Schedule:
    made = optfuse.optimize(Function(function), (X, W), options=OPTIONS, name="case")
    assert isinstance(made, Schedule)
    return made


def with_solution(schedule: Schedule, solution: Solution, memory: Memory = "arena") -> Schedule:
    """The schedule with another solution, and with memory that holds NaN until it is written."""
    result = replace(schedule.result, solution=solution)
    source = emit(schedule.extraction, result, memory)
    poisoned = re.sub(
        r"arena = scratch\((\d+), device\)", r"arena = torch.full((\1,), 255, dtype=torch.uint8, device=device)", source
    )
    poisoned = poisoned.replace("empty = allocator(device)", "empty = lambda *layout: poisoned(*layout, device)")
    poisoned = poisoned.replace("\ndef call(", POISONED + "\n\ndef call(")
    return replace(schedule, result=result, source=poisoned)


POISONED = """
def poisoned(shape, stride, dtype, device):
    extent = 1 + sum((n - 1) * step for n, step in zip(shape, stride))
    memory = torch.full((0 if 0 in shape else extent * dtype.itemsize,), 255, dtype=torch.uint8, device=device)
    return memory.view(dtype).as_strided(shape, stride)
"""


def with_memory(schedule: Schedule, memory: Memory) -> Schedule:
    """The schedule emitted with its temporaries held in another way."""
    return with_solution(schedule, schedule.solution, memory)


def apart(schedule: Schedule) -> Schedule:
    """The schedule with memory of its own for every live buffer."""
    instance, kernels = schedule.instance, schedule.solution.kernels
    problem, order = order_problem(instance, kernels), range(len(kernels))
    return with_solution(
        schedule, arrange(instance, kernels, problem, order, pack(arena_spans(instance, problem, order)))
    )


def taken(schedule: Schedule, memory: Memory = "arena") -> set[str]:
    """All buffers that are written in place."""
    solution = schedule.solution
    found = held(schedule.extraction, solution, memory)
    return set().union(*(written_in_place(schedule.instance, k, solution, found) for k in solution.kernels))


@pytest.mark.spread(2)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_results_are_the_same_bit_for_bit(function: Callable[..., Any]) -> None:
    schedule = schedule_of(function)
    assert taken(schedule)
    assert not taken(apart(schedule))
    wanted = apart(schedule).compile()(X, W)
    assert wanted.isfinite().all()
    for memory in MEMORIES:
        assert torch.equal(with_solution(schedule, schedule.solution, memory).compile()(X, W), wanted)
    torch.testing.assert_close(wanted, function(X, W), rtol=1e-4, atol=1e-4)


def test_a_buffer_that_is_read_turned_is_not_overwritten() -> None:
    schedule = schedule_of(read_twice_at_once)
    for memory in MEMORIES:
        assert not taken(schedule, memory)
        got = with_solution(schedule, schedule.solution, memory).compile()(X, W)
        torch.testing.assert_close(got, read_twice_at_once(X, W), rtol=1e-4, atol=1e-4)


def test_results_would_differ_if_a_buffer_that_is_read_later_were_overwritten() -> None:
    """The test above has teeth: over the first product, the sum at the end is wrong."""
    schedule = schedule_of(residual)
    instance, solution = schedule.instance, schedule.solution
    kept = instance.ops[0].offers[0].writes[0].buffer
    assert instance.ops[0].kind == "library"
    (over,) = next(k.writes for k in solution.kernels[1:] if kept in reads(instance, k))
    offsets = {placement.buffer: placement.offset for placement in solution.placements}
    assert offsets[over] != offsets[kept]
    moved = tuple(Placement(b, offsets[kept] if b == over else offset) for b, offset in offsets.items())
    spoiled = replace(solution, placements=moved)
    assert "overlap" in {violation.code for violation in check(instance, spoiled)}
    got = with_solution(schedule, spoiled).compile()(X, W)
    assert not torch.allclose(got, apart(schedule).compile()(X, W))


def reads(instance: Instance, kernel: Kernel) -> set[int]:
    offers = [offer for op in kernel.ops for offer in instance.ops[op].offers if offer.scheme == kernel.scheme]
    return {read.buffer for offer in offers for read in offer.reads}


@pytest.mark.slow
def test_models_compute_the_same_bit_for_bit() -> None:
    file = load_model_file(MODELS / "gpt2.py")
    args, kwargs = file.inputs("small")
    schedule = optfuse.optimize(file.model("small").eval(), args, kwargs, options=OPTIONS)
    assert isinstance(schedule, Schedule)
    assert len(taken(schedule)) > 5
    assert len(taken(schedule, "apart")) > 5
    wanted = apart(schedule).compile()(*args, **kwargs)
    for memory in MEMORIES:
        got = with_solution(schedule, schedule.solution, memory).compile()(*args, **kwargs)
        assert torch.equal(got.logits, wanted.logits)


@pytest.mark.slow
def test_gradients_are_the_same_bit_for_bit() -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0, activation="gelu", batch_first=True)
    x = torch.randn(2, 9, 32)
    training = optfuse.optimize(layer, (x,), train=True, options=OPTIONS)
    assert isinstance(training, TrainingSchedule)
    assert taken(training.backward)
    state = copy.deepcopy(training.model.state_dict())
    found = []
    ways = [partial(with_memory, memory=memory) for memory in MEMORIES]
    for changed in (*ways, apart):
        training.model.load_state_dict(state)
        training.model.zero_grad()
        step = replace(training, forward=changed(training.forward), backward=changed(training.backward)).compile()
        step(x).sin().sum().backward()
        found.append([p.grad.clone() for p in training.model.parameters() if p.grad is not None])
    assert len(found[0]) > 10
    assert all(torch.equal(one, x) for gradients in found[1:] for one, x in zip(found[0], gradients, strict=True))


class Broadcast(torch.nn.Module):
    """Small values that are returned and also broadcast, along rows and along channels."""

    def __init__(self) -> None:
        super().__init__()
        self.channel = torch.nn.Parameter(torch.linspace(-1, 1, 6))
        self.column = torch.nn.Parameter(torch.linspace(-1, 1, 7))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scale = torch.sigmoid(self.channel) * 2
        shift = torch.tanh(self.column)
        return (x * scale[None, :, None] + 1).relu(), scale, torch.softmax(y * shift, -1), shift


def test_a_broadcast_value_is_stored_by_one_point_of_its_repeats() -> None:
    torch.manual_seed(0)
    model, inputs = Broadcast(), (torch.randn(4, 6, 5), torch.randn(9, 7))
    schedule = optfuse.optimize(model, inputs)
    assert len(schedule.solution.kernels) == 2
    assert "& (xindex < 1)" in schedule.source  # the first row stores what every row has computed
    for got, expected in zip(schedule.compile()(*inputs), model(*inputs), strict=True):
        torch.testing.assert_close(got, expected)
