"""Scans on a GPU, through ``torch.compile``: rows in a tile and in blocks, along memory and across it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.associative_scan import associative_scan

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def nucleus(x: Tensor) -> tuple[Tensor, ...]:
    chances = x.softmax(-1)
    return chances.cumsum(-1), torch.where(chances.cumsum(-1) - chances < 1e-3, 1, 0).sum(-1).clamp(max=1)


def recurrence(x: Tensor) -> Tensor:
    return associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (x.sigmoid(), x), 0)[1] * 2


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "sums of rows": lambda x: (x * 2).cumsum(-1) + 1,
    "sums of columns": lambda x: (x * 2).cumsum(0) + 1,
    "nucleus": nucleus,
    "extrema": lambda x: (*x.cummax(-1), *x.cummin(0)),
    "logarithms": lambda x: x.logcumsumexp(-1),
    "positions": lambda x: (x > 0).cumsum(-1) * (x > 0) - 1,
    "recurrence": recurrence,
}


@pytest.mark.parametrize("shape", [(3, 2), (7, 129), (512, 1000), (64, 8192), (300, 20_000), (2048, 96)], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_scans(name: str, shape: tuple[int, ...]) -> None:
    torch.compiler.reset()
    x = torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    got, wanted = torch.compile(FUNCTIONS[name], backend="optfuse")(x), FUNCTIONS[name](x)
    torch.testing.assert_close(got, wanted, rtol=2e-4, atol=2e-3)
