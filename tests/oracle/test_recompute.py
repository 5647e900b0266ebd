"""Ops computed in several kernels, end to end: a cap that only a copy can keep, and what the program then computes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import optfuse
from optfuse.api import Schedule
from optfuse.errors import InfeasibleError
from optfuse.runtime.environment import mode
from tests.oracle.judging import OPTIONS

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")


class Masked(nn.Module):
    """A large value made of two small ones, used on both sides of two matmuls."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first = nn.Parameter(torch.randn(256, 256, generator=generator) / 16)
        self.second = nn.Parameter(torch.randn(256, 256, generator=generator) / 16)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        large = torch.exp(a[:, None] - b[None, :].abs())
        return ((torch.relu(large) @ self.first @ self.second) * large).sum(1)


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(512, generator=generator), torch.randn(256, generator=generator)


def test_a_cap_that_forces_recompute() -> None:
    model, args = Masked(), inputs()
    with pytest.raises(InfeasibleError, match=r"the least that can be met is .* proven") as caught:
        optfuse.optimize(model, args, options=replace(OPTIONS, peak_memory="1.7MB"))
    assert caught.value.proven

    schedule = optfuse.optimize(model, args, options=replace(OPTIONS, peak_memory="1.7MB", recompute=True))
    assert isinstance(schedule, Schedule)
    assert schedule.status == "OPTIMAL"
    assert schedule.solution.peak_bytes <= 1_700_000
    runs = [op for kernel in schedule.solution.kernels for op in kernel.ops]
    assert len(runs) > len(set(runs))
    with torch.no_grad():
        torch.testing.assert_close(schedule.compile()(*args), model(*args), rtol=1e-4, atol=1e-4)


def test_the_least_with_copies_is_named() -> None:
    with pytest.raises(InfeasibleError, match=r"the least that can be met is 1575936 bytes \(1.5 MiB\), proven"):
        optfuse.optimize(Masked(), inputs(), options=replace(OPTIONS, peak_memory="1MB", recompute=True))
