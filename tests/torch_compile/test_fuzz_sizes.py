"""Random programs over tensors of two sizes that change, against eager execution at twenty pairs of sizes each."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from optfuse.runtime.environment import mode
from tests.torch_compile.test_torch_compile import Compiler, compiled

__all__ = ["compiled"]

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")

WIDTH, QUICK, PART, PARTS, DRAWN = 6, 1, 10, 4, 20
Step = Callable[[Tensor, Tensor, int], Tensor]


def _half(x: Tensor, y: Tensor, n: int) -> Tensor:
    """The first half of a dimension, padded to its size again."""
    dim = n % 2
    kept = x.narrow(dim, 0, x.shape[dim] - x.shape[dim] // 2)
    return torch.cat([kept, y.narrow(dim, 0, x.shape[dim] // 2)], dim)


def _padded(x: Tensor, _: Tensor, n: int) -> Tensor:
    """Padded to a multiple of four, summed up in fours, and cut again."""
    y = F.pad(x, (0, 0, 0, (4 - x.shape[1] % 4) % 4))
    y = y.unflatten(1, (y.shape[1] // 4, 4)).cumsum(1 + n % 2).flatten(1, 2)
    return y[:, : x.shape[1]]


def _masked(x: Tensor, y: Tensor, n: int) -> Tensor:
    rows, columns = torch.arange(x.shape[0]), torch.arange(x.shape[1])
    return torch.where((rows[:, None] * (n + 1) <= columns + n)[:, :, None], x, y)


def _scaled(x: Tensor, y: Tensor, n: int) -> Tensor:
    return x / (x.shape[n % 2] + 1) + y.mean(n % 3, keepdim=True).nan_to_num() * x.shape[1]


#: By name, what a program may do to two tensors of (a, b, WIDTH), and a number: one of the same shape.
STEPS: dict[str, Step] = {
    "arithmetic": lambda x, y, n: (x * y + n).tanh(),
    "mean": lambda x, y, n: x - y.mean(n % 3, keepdim=True).nan_to_num(),
    "softmax": lambda x, y, n: x.softmax(n % 3) + y,
    "norm": lambda x, y, _: F.layer_norm(x, (WIDTH,)) * y,
    "turned": lambda x, y, _: (x.transpose(0, 1).contiguous() * 2).transpose(0, 1) + y,
    "flat": lambda x, y, n: (x.flatten(0, 1).roll(n + 1, 0) * 2).view_as(x) + y,
    "scan": lambda x, y, n: x.cumsum(n % 2) * 0.1 + y,
    "flip": lambda x, y, n: x.flip(n % 2).sigmoid() * y,
    "product": lambda x, y, _: torch.matmul(torch.matmul(x, y.mT).tanh(), y) / (x.shape[1] + 1),
    "sum": lambda x, y, _: x + y.sum((0, 1)),
    "maximum": lambda x, y, n: torch.maximum(x.roll(n, 1), y).relu() - n,
    "gather": lambda x, y, n: x.gather(n % 2, y.abs().mul(9).long().remainder(max(x.shape[n % 2], 1))),
    "half": _half,
    "padded": _padded,
    "masked": _masked,
    "scaled": _scaled,
}


class Program:
    """A drawn list of steps: each takes two of the values so far, and a number."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        names = draw.choices(list(STEPS), k=draw.randint(4, 7))
        self.steps = [
            (name, draw.randrange(2 + k), draw.randrange(2 + k), draw.randrange(5)) for k, name in enumerate(names)
        ]

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """The last two values."""
        values = [x, y]
        for name, one, other, number in self.steps:
            values.append(STEPS[name](values[one], values[other], number))
        return tuple(values[-2:])


def sizes(draw: random.Random) -> list[tuple[int, int]]:
    """Pairs of sizes: most of 2 or more, and four with a 0 or a 1."""
    few = [(0, 5), (1, 4), (3, 1), (4, 0)]
    many = [(draw.randint(2, 12), draw.randint(2, 20)) for _ in range(DRAWN - len(few))]
    return [*many[:8], *few, *many[8:]]


def check(seed: int, compiled: Compiler) -> tuple[int, int]:
    """Compare a program with eager execution; its traces, and those that met sizes without a range.

    No range is lost for another reason than that a size is like no other.
    """
    program, draw = Program(seed), random.Random(seed)
    function: Any = compiled(lambda x, y: program(x, y), dynamic=True)
    torch.manual_seed(seed)
    with torch.no_grad():
        for a, b in sizes(draw):
            x, y = torch.randn(a, b, WIDTH), torch.randn(a, b, WIDTH)
            message = f"seed {seed} at {a} x {b}: {program.steps}"
            torch.testing.assert_close(
                function(x, y), program(x, y), rtol=1e-4, atol=1e-4, msg=lambda text, said=message: f"{said}\n{text}"
            )
    left = [pair for run in compiled.runs for pair in run.record.unplanned]
    assert left == [], f"seed {seed}: {program.steps}"
    lost = [pair for run in compiled.runs for pair in run.record.by_size if "valid at one size only" not in pair[1]]
    assert lost == [], f"seed {seed}: {program.steps}"
    return len(compiled.runs), sum(bool(run.record.by_size) for run in compiled.runs)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(QUICK))
def test_random_programs_at_twenty_sizes(compiled: Compiler, seed: int) -> None:
    traces, by_size = check(seed, compiled)
    assert traces <= 5 + 2, "one for a range, four of sizes 0 and 1, and what torch.compile finds equal"
    assert by_size == 0


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_many_random_programs_at_twenty_sizes(part: int) -> None:
    """Only what halves or pads a dimension leaves torch with one of its sizes: at 3, a half has a size of 1."""
    for seed in range(QUICK + part * PART, QUICK + (part + 1) * PART):
        torch._dynamo.reset()  # noqa: SLF001 - its public face
        _, by_size = check(seed, Compiler())
        names = {name for name, *_ in Program(seed).steps}
        assert by_size == 0 or names & {"half", "padded"}, f"seed {seed}"
