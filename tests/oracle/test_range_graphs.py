"""Random small graphs with two sizes that change, through torch.compile, against eager execution at drawn sizes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.torch_compile.test_torch_compile import Compiler, compiled

__all__ = ["compiled"]

WIDTH, DRAWN = 6, 14

#: Steps from a tensor of (batch, length, WIDTH) to another one, or to one that is broadcast to it.
STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "normalise": lambda x: F.layer_norm(x, (WIDTH,)),
    "over_length": lambda x: x - x.mean(1, keepdim=True),
    "over_batch": lambda x: x - x.amax(0, keepdim=True),
    "softmax": lambda x: x.softmax(1),
    "turn": lambda x: x.flip(1),
    "transpose": lambda x: x.mT.contiguous().mT * 2,
    "flat": lambda x: x.flatten(0, 1).sin().view(x.shape),
    "rows": lambda x: x.reshape(x.shape[0], -1).cumsum(1).tanh().view(x.shape),
    "shift": lambda x: F.pad(x, (0, 0, 1, 0))[:, :-1],
    "position": lambda x: x + torch.arange(x.shape[1])[:, None],
    "causal": lambda x: x.masked_fill(torch.arange(x.shape[1])[:, None] > torch.arange(x.shape[0])[:, None, None], 0.0),
    "scaled": lambda x: x / x.shape[1] + x.shape[0],
    "halves": lambda x: torch.cat([x[..., 3:], x[..., :3]], -1),
    "scores": lambda x: (x @ x.mT).relu() @ x / x.shape[1],
    "attend": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
}


def drawn_graph(seed: int) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """A function of two to five steps, of which each reads the last value or the one before it."""
    draw = random.Random(seed)
    names = [draw.choice(list(STEPS)) for _ in range(draw.randint(2, 5))]
    before = [draw.random() < 0.3 for _ in names]

    def function(x: Tensor) -> tuple[Tensor, ...]:
        values = [x, x]
        for name, other in zip(names, before, strict=True):
            values.append(STEPS[name](values[-2 if other else -1]) + values[-1])
        return values[-1], values[-2].sum((0, 1))

    function.__name__ = "_".join(names)
    return function


@pytest.mark.spread(6, 2)
@pytest.mark.parametrize("seed", range(6))
def test_graphs_of_drawn_sizes_are_those_of_eager_execution(compiled: Compiler, seed: int) -> None:
    function = drawn_graph(seed)
    fast: Any = compiled(function)
    draw = random.Random(seed)
    with torch.no_grad():
        for k in range(DRAWN):
            shape = (draw.randint(2, 9), draw.randint(2, 20)) if k else (3, 5)
            x = torch.randn(*shape, WIDTH)
            for axis in (0, 1):
                torch._dynamo.mark_dynamic(x, axis)  # noqa: SLF001 - its public face
            torch.testing.assert_close(fast(x), function(x), rtol=1e-4, atol=1e-4)
    for run in compiled.runs:
        assert run.record.unplanned == []
        assert len(run.record.schedules) <= DRAWN
