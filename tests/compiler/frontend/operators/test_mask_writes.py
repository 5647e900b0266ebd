"""Writes by a mask are choices, also in training; what has values of its own for each place stays a write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from optfuse.compiler.frontend.operators.decompositions import OWN
from optfuse.runtime.environment import mode
from tests.torch_compile.test_torch_compile import Compiler, planned

aten = torch.ops.aten
on_cpu = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")


@pytest.fixture
def compiled() -> Compiler:
    """The compiler, with nothing compiled before."""
    torch._dynamo.reset()  # noqa: SLF001 - its public face
    torch.manual_seed(0)
    return Compiler()


def _number(x: Tensor, y: Tensor) -> Tensor:
    x = x * 2
    x[y > 0] = 0.0
    return x + y


def _sum(x: Tensor, y: Tensor) -> Tensor:
    x = x * 2
    x[y > 0] = y.sum()
    return x


def _rows(x: Tensor, y: Tensor) -> Tensor:
    x = x * 2
    x[y[:, 0] > 0] = y[0]
    x[y[:, 1] > 0, 1:4] = y[:1, 2:5]
    return x


def _in_the_middle(x: Tensor, y: Tensor) -> Tensor:
    x = (x + y).view(2, 2, 8).clone()
    x[0, y[:2] > 0] = 2.5
    x[..., y[0] > 0] = y.sum()
    x[..., y[:2] > 1] += 0.0 * y.sum()
    x[:, y[2, :2] > 0, 1:3] = y[0, :2]
    x[1, :, y[1] > 0] = y[:2, :1]
    x[None, :, y[:2, 3] > 0] = y[2]
    return x


def _as_functions(x: Tensor, y: Tensor) -> Tensor:
    x = x.index_put((y[:, 0] > 0,), y[:1], accumulate=True)
    x.index_put_((y > 1,), y.mean())
    return torch.index_put(x, (y < -1,), y.mean(), accumulate=True)


def _transposed(x: Tensor, y: Tensor) -> Tensor:
    x = (x * y).t()
    x[y[0] > 0] = y[:, 1]
    return x * 2


@on_cpu
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("function", [_number, _sum, _rows, _as_functions, _transposed])
def test_one_value_for_all_places(compiled: Compiler, function: Callable[..., Tensor], train: bool) -> None:
    x, y = (torch.randn(4, 8, requires_grad=train) for _ in range(2))
    wanted, got = function(x, y), compiled(function)(x, y)
    torch.testing.assert_close(got, wanted)
    assert got.stride() == wanted.stride()
    if train:
        of = [torch.autograd.grad(result.square().sum(), (x, y)) for result in (got, wanted)]
        torch.testing.assert_close(*of)
    assert planned(compiled)
    assert not any("aten.index_put" in schedule.source for run in compiled.runs for schedule in run.record.schedules)


def _rows_of_their_own(x: Tensor, y: Tensor) -> Tensor:
    x = x * 2
    x[x[:, 0] > 0] = y
    return x.sin()


def _put_rows(x: Tensor, y: Tensor) -> Tensor:
    x = x.index_put((x[:, 0] > 1.5,), y[1:])
    return x.index_put_((x[:, 0] > 0,), y).sin()


@on_cpu
@pytest.mark.parametrize("function", [_rows_of_their_own, _put_rows])
def test_other_values_have_gradients(compiled: Compiler, function: Callable[..., Tensor]) -> None:
    x = torch.tensor([1.0, -1.0, 2.0, -2.0, 3.0]).unsqueeze(1).repeat(1, 4).requires_grad_()
    y = torch.rand(3, 4).requires_grad_()
    wanted, got = function(x, y), compiled(function)(x, y)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(result.square().sum(), (x, y)) for result in (got, wanted)))
    assert planned(compiled)
    torch.testing.assert_close(compiled(function)(x, y.detach()), wanted)
    with pytest.raises(RuntimeError, match="as many rows"):
        compiled(function)(-x, y)


@on_cpu
def test_masks_among_slices_and_numbers(compiled: Compiler) -> None:
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    torch.testing.assert_close(compiled(_in_the_middle)(x, y), _in_the_middle(x, y))


@on_cpu
def test_written_arguments_and_other_types(compiled: Compiler) -> None:
    def function(x: Tensor, y: Tensor) -> None:
        x[y > 0] = 2.7
        x[:, y[0] > 1] = True

    x, y = torch.randint(9, (4, 8)), torch.randn(4, 8)
    other = x.clone()
    function(x, y)
    compiled(function)(other, y)
    assert torch.equal(other, x)


MASK = torch.tensor([[True, False, True], [False, False, True]])
X, ROW = torch.arange(24.0).view(2, 3, 4), torch.tensor([1.0, 2.0, 3.0, 4.0])
PUTS: dict[str, tuple[Any, ...]] = {
    "number": (X, [MASK], torch.tensor(5.0)),
    "row": (X, [MASK], ROW),
    "row for all": (X, [MASK], ROW.view(1, 4)),
    "added": (X, [MASK], ROW.view(1, 4), True),
    "second dimension": (X, [None, MASK[0]], ROW),
    "second dimension, one a matrix": (X, [None, MASK[0]], ROW[:2].view(2, 1, 1)),
    "last dimensions": (X.permute(2, 0, 1), [None, MASK], ROW.view(4, 1)),
    "nothing": (X, [torch.zeros(2, 3, dtype=torch.bool)], ROW),
}


@pytest.mark.parametrize("name", PUTS)
def test_the_same_values_for_all_places_like_eager(name: str) -> None:
    found, wanted = OWN[aten.index_put.default](*PUTS[name]), aten.index_put.default(*PUTS[name])
    assert torch.equal(found, wanted)
    assert found.stride() == wanted.stride()


def test_other_values_stay_a_write() -> None:
    own = OWN[aten.index_put.default]
    assert own(X, [MASK], torch.arange(12.0).view(3, 4)) is NotImplemented
    assert own(X, [MASK[:, 0], torch.tensor([1])], torch.tensor(1.0)) is NotImplemented
    assert own(X, [torch.tensor(True)], torch.tensor(1.0)) is NotImplemented
    assert own(X, [MASK[:, :2]], torch.tensor(1.0)) is NotImplemented
