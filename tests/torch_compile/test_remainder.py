"""What no plan can hold runs after the scheduled rest: sparse gradients, arguments and windows that overlap."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from optfuse.runtime.environment import mode
from tests.torch_compile.test_torch_compile import Compiler

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")


class Recommender(nn.Module):
    """Two tables with sparse gradients, and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.bags = nn.Embedding(20, 6, sparse=True), nn.EmbeddingBag(30, 6, mode="sum", sparse=True)
        self.last = nn.Linear(12, 1)

    def forward(self, users: Tensor, things: Tensor) -> Tensor:
        return self.last(torch.cat([self.users(users).tanh(), self.bags(things)], -1)).sigmoid()


def test_sparse_gradients_cost_themselves() -> None:
    torch.manual_seed(0)
    compiled = Compiler()
    ours, users, things = Recommender(), torch.tensor([1, 4, 4]), torch.randint(0, 30, (3, 5))
    theirs = copy.deepcopy(ours)
    for run, model in ((compiled(ours), ours), (theirs, theirs)):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for k in range(3):
            optimizer.zero_grad()
            run(users + k, things).square().sum().backward()
            optimizer.step()
    for (name, got), wanted in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(got, wanted, msg=name)
        assert got.grad is not None
        assert wanted.grad is not None
        assert got.grad.is_sparse == wanted.grad.is_sparse
    record = compiled.runs[0].record
    assert not record.unplanned
    backward = next(schedule for schedule in record.schedules if schedule.name.endswith("backward"))
    assert len(backward.solution.kernels) > 1


@pytest.mark.parametrize("stride", [(1, 1), (2, 1)])
def test_an_argument_that_overlaps_itself(stride: tuple[int, int]) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        x[-1] = x[-1] * 2
        y += 3
        return x + y.exp(), (y * 2).softmax(0), x

    compiled = Compiler()
    results: list[Any] = []
    for run in (compiled(function), function):
        x, y = torch.arange(40.0).div(10).as_strided((4, 3), stride, 1), torch.ones(3)
        results.append((*run(x, y), x, y))
    torch.testing.assert_close(*results)
    assert not compiled.runs[0].record.unplanned
    assert compiled.runs[0].record.schedules


def test_a_program_that_is_wrong_in_eager_execution_says_so(caplog: pytest.LogCaptureFixture) -> None:
    def function(x: Tensor) -> Tensor:
        return x.add_(1) * 2

    with pytest.raises(RuntimeError, match="single memory location"):
        torch.compile(function, backend="optfuse", options={"strict": False})(torch.ones(1, 3).expand(4, 3))
    assert "torch cannot trace it" in caplog.text
    assert "defect" not in caplog.text
