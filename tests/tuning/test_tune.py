"""Schedules with measured tiles, by a stand-in for the GPU: equal kernels share answers, which are kept."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import optfuse
from optfuse.cache import Cache
from optfuse.errors import InvalidOptionError, PlanError
from optfuse.runtime.environment import mode
from optfuse.tuning.device import Problem
from optfuse.tuning.search import Measure, Trial
from optfuse.tuning.tune import tune
from tests.oracle.judging import OPTIONS

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")


class Net(nn.Module):
    """Equal layers, and an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 48)
        self.layers = nn.ModuleList(nn.Linear(48, 48) for _ in range(4))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x))
        return x


IDS = torch.arange(99) % 11


class Bench:
    """Measures without a device: few warps and small blocks are fast. Counts the searches that it is opened for."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    @contextmanager
    def __call__(self, problems: Sequence[Problem]) -> Iterator[Measure]:
        self.problems += [problem.spec.name for problem in problems]

        def measure(trials: Sequence[Trial], runs: int) -> list[float]:
            return [10.0 * t.config.num_warps + sum(size for _, size in t.config.blocks) for t in trials]

        yield measure


@pytest.fixture(scope="module")
def schedule() -> optfuse.Schedule:
    torch.manual_seed(0)
    return optfuse.optimize(Net(), (IDS,), options=OPTIONS, name="net")


def test_one_search_a_function_and_the_same_results(schedule: optfuse.Schedule, tmp_path: Path):
    bench = Bench()
    found = tune(schedule, cache=Cache(tmp_path), measuring=bench, device="fake")
    functions = re.findall(r"^def (k\d+\w*)", schedule.source, flags=re.MULTILINE)
    assert bench.problems == functions
    assert [kernel.names[0] for kernel in found.kernels] == functions
    changed = [kernel for kernel in found.kernels if kernel.after != kernel.before]
    assert changed
    assert any(len(kernel.names) > 1 for kernel in changed)
    assert found.schedule.tiles == {name: kernel.after for kernel in changed for name in kernel.names}
    assert "us" in found.text()
    for kernel in changed:
        assert f'"num_warps": {kernel.after.num_warps}' in found.schedule.source
    assert torch.allclose(found.schedule.compile()(IDS), schedule.compile()(IDS), atol=1e-6)


def test_what_was_found_is_kept(schedule: optfuse.Schedule, tmp_path: Path):
    first = tune(schedule, cache=Cache(tmp_path), measuring=Bench(), device="fake")
    bench = Bench()
    again = tune(schedule, cache=Cache(tmp_path), measuring=bench, device="fake")
    assert bench.problems == []
    assert again.schedule.source == first.schedule.source
    assert all(kernel.cached for kernel in again.kernels)
    tune(schedule, cache=Cache(tmp_path), measuring=bench, device="another")
    assert bench.problems


def test_a_plan_keeps_its_tiles(schedule: optfuse.Schedule, tmp_path: Path):
    tuned = tune(schedule, cache=Cache(tmp_path / "cache"), measuring=Bench(), device="fake").schedule
    tuned.save(tmp_path / "plan")
    loaded = optfuse.load(tmp_path / "plan")
    assert loaded.tiles == tuned.tiles
    assert loaded.source == tuned.source != schedule.source


@pytest.mark.parametrize(
    ("old", "new"), [('"XBLOCK"', '"ZBLOCK"'), ('"num_warps"', '"warps"'), ('"loop": "none"', '"loop": "round"')]
)
def test_a_damaged_tile_is_refused(schedule: optfuse.Schedule, tmp_path: Path, old: str, new: str):
    tune(schedule, cache=Cache(tmp_path / "cache"), measuring=Bench(), device="fake").schedule.save(tmp_path / "plan")
    path = tmp_path / "plan" / "plan.json"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(PlanError):
        optfuse.load(tmp_path / "plan")


def test_without_a_gpu_it_is_refused_in_a_line(schedule: optfuse.Schedule):
    for attempt in (schedule.tune, lambda: schedule.compile(tune=True)):
        with pytest.raises(InvalidOptionError, match="tuning needs a GPU to run kernels on"):
            attempt()
