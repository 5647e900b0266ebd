"""Tiles searched and plans ranked on a GPU: results stay right, what was learnt is read again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import optfuse
from optfuse.cache import Cache
from optfuse.tuning.rank import rank
from optfuse.tuning.tune import tune

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

OPTIONS = optfuse.SolveOptions(time_limit=5, workers=8)


class Net(nn.Module):
    """Gathers, rows, columns and a plain loop."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.first, self.norm = nn.Embedding(100, 256), nn.Linear(256, 512), nn.LayerNorm(512)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.gelu(self.norm(self.first(self.table(ids))))
        return torch.softmax(x, -1) * x.sum(0)


@pytest.fixture(scope="module")
def case() -> tuple[Net, torch.Tensor, optfuse.Schedule]:
    torch.manual_seed(0)
    model, ids = Net().cuda(), torch.randint(0, 100, (4096,), device="cuda")
    return model, ids, optfuse.optimize(model, (ids,), options=OPTIONS, name="net")


def test_tuned_kernels_compute_the_same(case: tuple[Net, torch.Tensor, optfuse.Schedule], tmp_path: Path) -> None:
    model, ids, schedule = case
    found = tune(schedule, cache=Cache(tmp_path))
    measured = [kernel for kernel in found.kernels if not kernel.reason]
    assert measured
    assert all(kernel.after_us > 0 and kernel.tried > 1 for kernel in measured)
    torch.testing.assert_close(found.schedule.compile(cudagraphs=False)(ids), model(ids), rtol=1e-4, atol=1e-4)
    again = tune(schedule, cache=Cache(tmp_path))
    assert again.schedule.source == found.schedule.source
    assert all(kernel.cached or kernel.reason for kernel in again.kernels)


def test_plans_are_ranked(case: tuple[Net, torch.Tensor, optfuse.Schedule], tmp_path: Path) -> None:
    model, ids, schedule = case
    taken = rank(schedule, OPTIONS, 3, cache=Cache(tmp_path))
    assert len(taken.ranking) > 1
    assert all(row.measured_us > 0 for row in taken.ranking)
    torch.testing.assert_close(taken.compile(cudagraphs=False)(ids), model(ids), rtol=1e-4, atol=1e-4)
    assert rank(schedule, OPTIONS, 3, cache=Cache(tmp_path)).ranking == taken.ranking
