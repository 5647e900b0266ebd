"""Inputs like those of an earlier call are taken at once; all others are checked as in the first call."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from optfuse.compiler.ops.host_numbers import numbers_on
from optfuse.errors import InvalidInputError
from optfuse.runtime.program import Program
from optfuse.runtime.seen_inputs import MOST_KINDS

MODULE = """
import torch
DEVICE = torch.device("cpu")
INPUTS = (
    ("x", "float32", (2, 3), (3, 1), "cpu", False),
    ("m", "float32", (2, 3), (3, 1), "cpu", True),
)
CONSTANTS = ()
KERNELS = {}


def call(inputs, constants):
    x, m = inputs
    assert x.stride() == (3, 1) and not x.is_neg()
    m.copy_(x)
    return ()
"""


@pytest.fixture
def program(tmp_path: Path) -> Program:
    made = Program(MODULE, folder=tmp_path)
    for _ in range(2):
        written = torch.zeros(2, 3)
        made(torch.ones(2, 3), written)
        assert written.tolist() == [[1, 1, 1]] * 2
    return made


@pytest.mark.parametrize(
    "x",
    [
        torch.arange(6.0).reshape(3, 2).t(),
        torch.arange(6.0).reshape(2, 3)._neg_view(),  # noqa: SLF001  # pyright: ignore
        torch.arange(6.0).reshape(2, 3).requires_grad_(),
        torch.nn.Parameter(torch.arange(6.0).reshape(2, 3)),
        torch.arange(3.0).expand(2, 3),
    ],
)
def test_other_kinds_are_still_adapted(program: Program, x: Tensor) -> None:
    for _ in range(MOST_KINDS + 1):
        written = torch.zeros(2, 3)
        program(x, written)
        assert torch.equal(written, x)


@pytest.mark.parametrize(
    "x", [torch.ones(2, 3).double(), torch.ones(2, 4), torch.ones(6), torch.ones(2, 3, device="meta")]
)
def test_what_the_first_call_would_refuse_is_still_refused(program: Program, x: Tensor) -> None:
    with pytest.raises(InvalidInputError):
        program(x, torch.zeros(2, 3))
    with pytest.raises(InvalidInputError, match="1 inputs"):
        program(torch.ones(2, 3))


def test_a_tensor_that_is_given_twice_and_a_kind_that_changes_each_call(program: Program) -> None:
    same = torch.ones(2, 3)
    program(same, same)
    for k in range(2 * MOST_KINDS):
        written = torch.zeros(2, 3)
        program(torch.full((2, 3), float(k), requires_grad=bool(k % 2)), written)
        assert written[0, 0] == k


def test_numbers_go_together_and_are_those_of_the_call() -> None:
    numbers = [torch.tensor(2.0), torch.tensor(3), torch.tensor(4.0, dtype=torch.float64), torch.tensor(5.0)]
    copies = numbers_on(torch.device("cpu"), numbers)
    for x in numbers:
        x.zero_()
    assert [x.tolist() for x in copies] == [2.0, 3, 4.0, 5.0]
    assert [(x.dtype, x.shape) for x in copies] == [(x.dtype, x.shape) for x in numbers]
    assert not any(x.data_ptr() % 16 for x in copies)
    assert len({x.untyped_storage().data_ptr() for x in copies}) == 3
