"""What is compiled before the first launch is what launches use."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import optfuse
from optfuse.runtime.loader import load_source

pytestmark = pytest.mark.gpu


def test_launches_find_every_kernel_compiled() -> None:
    model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.LayerNorm(96), nn.Softmax(-1)).cuda()
    x = torch.randn(32, 64, device="cuda")
    schedule = optfuse.optimize(model, (x,))
    program = schedule.compile(cudagraphs=False)
    table = load_source(schedule.source).KERNELS

    def compiled() -> list[int]:
        return [len(row["function"].device_caches[torch.cuda.current_device()][0]) for row in table.values()]

    before = compiled()
    assert before == [1] * len(table)
    with torch.no_grad():
        torch.testing.assert_close(program(x), model(x), rtol=1e-3, atol=1e-3)
    assert compiled() == before
