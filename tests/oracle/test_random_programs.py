"""Random small programs through the whole pipeline, against eager: what no one thought of writing down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from torch import Tensor

import optfuse
from optfuse.errors import CaptureError
from optfuse.runtime.environment import mode
from tests.oracle.judging import GREEDY, OPTIONS, Function

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")


@dataclass(frozen=True)
class Step:
    """One op of a random program: its name, and two numbers that choose its operands and dimensions."""

    name: str
    a: int
    b: int


def _dim(x: Tensor, number: int) -> int:
    return number % x.dim()


#: Smooth or exact ops of the latest value: small errors in, small errors out.
UNARY: dict[str, Callable[[Tensor, Step], Tensor]] = {
    "exp": lambda x, s: (x * 0.1).exp(),
    "gelu": lambda x, s: F.gelu(x),
    "tanh": lambda x, s: x.tanh() * 2,
    "square": lambda x, s: (x * 0.5).square(),
    "rsqrt": lambda x, s: (x.square() + 1).rsqrt(),
    "transpose": lambda x, s: x.transpose(_dim(x, s.a), _dim(x, s.b)),
    "flatten": lambda x, s: x.flatten(),
    "unsqueeze": lambda x, s: x.unsqueeze(s.a % (x.dim() + 1)) if x.dim() < 4 else x,
    "narrow": lambda x, s: x.narrow(_dim(x, s.a), s.b % x.shape[_dim(x, s.a)], 1),
    "stride": lambda x, s: x[s.b % 2 if x.shape[0] > 1 else 0 :: 1 + s.a % 3],
    "expand": lambda x, s: x.expand(2, *x.shape) if x.dim() < 4 else x,
    "sum": lambda x, s: x.sum(_dim(x, s.a), keepdim=bool(s.b % 2)) * 0.3,
    "mean": lambda x, s: x.mean(_dim(x, s.a), keepdim=bool(s.b % 2)),
    "total": lambda x, s: x + x.mean(),
    "softmax": lambda x, s: torch.softmax(x, _dim(x, s.a)),
    "norm": lambda x, s: (x - x.mean(-1, keepdim=True)) * (x.var(-1, correction=0, keepdim=True) + 1).rsqrt(),
    "pad": lambda x, s: F.pad(x, (s.a % 3, s.b % 2), value=0.5),
    "crop": lambda x, s: F.pad(x, (0, -1)) if x.shape[-1] > 1 else x,
    "flip": lambda x, s: x.flip(_dim(x, s.a)),
    "roll": lambda x, s: x.roll(s.b, _dim(x, s.a)),
    "repeat": lambda x, s: x.repeat(*[2 if d == _dim(x, s.a) else 1 for d in range(x.dim())]),
    "take": lambda x, s: x.index_select(_dim(x, s.a), torch.tensor([0, x.shape[_dim(x, s.a)] - 1, 0])),
    "mask": lambda x, s: torch.where(torch.arange(x.shape[-1]) > s.a, x, 1.0),
    "contiguous": lambda x, s: x.contiguous().view(-1, 1) + 1,
    "matmul": lambda x, s: x.reshape(-1, x.shape[-1]) @ x.reshape(-1, x.shape[-1]).t() * 0.1,
    "cumsum": lambda x, s: x.cumsum(_dim(x, s.a)) * 0.2,
    "clone": lambda x, s: x.clone(),
}

#: Ops of integers and of order, on inputs alone: an error could not change which branch is taken.
EXACT: dict[str, Callable[[Tensor, Step], Tensor]] = {
    "argmax": lambda x, s: x + x.argmax(_dim(x, s.a), keepdim=True),
    "amax": lambda x, s: x.amax(_dim(x, s.a), keepdim=True) - x,
    "sort": lambda x, s: torch.sort(x, dim=_dim(x, s.a)).values,
    "greater": lambda x, s: torch.where(x > 0, x, -2.0),
    "clamp": lambda x, s: x.clamp(-1, 2),
    "integer": lambda x, s: (x.to(torch.int32) // 2 % 3).to(x.dtype),
    "any": lambda x, s: x + (x > 1).any(_dim(x, s.a), keepdim=True),
    "relu": lambda x, s: x.relu(),
}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y.tanh(),
    "div": lambda x, y: x / (y.square() + 1),
    "cat": lambda x, y: torch.cat([x.flatten(), y.flatten()]),
}
LARGEST = 600

STEPS = st.lists(
    st.builds(Step, st.sampled_from([*UNARY, *EXACT, *BINARY]), st.integers(0, 7), st.integers(0, 7)),
    min_size=1,
    max_size=9,
)
SHAPES = st.sampled_from([((3, 4), (4,)), ((5, 7), (5, 1)), ((2, 3, 5), (3, 5)), ((1, 9), (9,)), ((17,), (1,))])


def program(steps: Sequence[Step]) -> Callable[[Tensor, Tensor], tuple[Tensor, ...]]:
    """A function that applies the steps in turn to the latest value, and returns every other one and the last."""

    def run(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        values = [x, y]
        for step in steps:
            latest = values[-1] if values[-1].dim() else values[-1][None]
            if step.name in UNARY:
                value = UNARY[step.name](latest, step)
            elif step.name in EXACT:
                value = EXACT[step.name]((x, y)[step.b % 2], step)
            else:
                other = values[step.a % len(values)]
                fits = all(m == n or 1 in (m, n) for m, n in zip(latest.shape[::-1], other.shape[::-1], strict=False))
                value = BINARY[step.name](latest, other) if fits or step.name == "cat" else latest + 1
            values.append(value.flatten()[:50] if value.numel() > LARGEST else value)
        return (*values[2:-1:2], values[-1])

    return run


def inputs(shapes: tuple[tuple[int, ...], ...], seed: int) -> tuple[Tensor, ...]:
    """Small whole numbers, rich in ties, whose sums are exact."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(-3, 4, shape, generator=generator).float() for shape in shapes)


def strides(x: Tensor) -> list[int]:
    """The strides that mean something: those of dimensions of more than one element, where there are elements."""
    return [step for step, size in zip(x.stride(), x.shape, strict=True) if size > 1 and x.numel()]


def check(steps: Sequence[Step], shapes: Any, seed: int, greedy: bool, train: bool) -> None:
    """The program's results and gradients are eager's."""
    function = Function(program(steps))
    ours = tuple(x.requires_grad_(train) for x in inputs(shapes, seed))
    theirs = tuple(x.requires_grad_(train) for x in inputs(shapes, seed))
    expected = function(*theirs)
    train = train and any(out.requires_grad for out in expected)
    try:
        schedule = optfuse.optimize(function, ours, train=train, options=GREEDY if greedy else OPTIONS)
    except CaptureError as error:
        # a program of views alone has no backward graph: autograd replays them on the inputs
        if "beyond views of its inputs" not in str(error):
            raise
        reject()
    found = schedule.compile()(*ours)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    if not train:
        assert [strides(x) for x in found] == [strides(x) for x in expected]
        return
    for outputs in (found, expected):
        sum((k + 1) * out.sin().sum() for k, out in enumerate(outputs) if out.requires_grad).backward()
    for x, y in zip(ours, theirs, strict=True):
        assert (x.grad is None) == (y.grad is None)
        if y.grad is not None:
            torch.testing.assert_close(x.grad, y.grad, rtol=1e-3, atol=1e-3)


@settings(max_examples=3)
@given(STEPS, SHAPES, st.integers(0, 3), st.booleans(), st.booleans())
def test_random_programs(steps: list[Step], shapes: Any, seed: int, greedy: bool, train: bool) -> None:
    check(steps, shapes, seed, greedy, train)


@pytest.mark.slow
@settings(max_examples=300)
@given(STEPS, SHAPES, st.integers(0, 3), st.booleans(), st.booleans())
def test_many_random_programs(steps: list[Step], shapes: Any, seed: int, greedy: bool, train: bool) -> None:
    check(steps, shapes, seed, greedy, train)
