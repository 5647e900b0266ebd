"""The refinement's predictions are the cost model's, and it finds the figures that made its samples."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import optfuse
from optfuse.api import Schedule
from optfuse.compiler.codegen.library_calls import takes_out
from optfuse.compiler.extract.extraction import extract
from optfuse.errors import PlanError
from optfuse.lab.calibrate.refine import FIELDS, PS, error, predicted_ps, quality, refine
from optfuse.lab.calibrate.samples import read_samples
from optfuse.problem.cost import kernel_cost
from optfuse.problem.device_files import load_device
from optfuse.problem.instance import Device


class Model(nn.Module):
    """Convolutions, dense and depthwise, a norm, attention and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Conv2d(8, 16, 3, padding=1)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.norm = nn.LayerNorm(16)
        self.out = nn.Linear(16, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.depthwise(torch.relu(self.dense(x)))).flatten(2).transpose(1, 2)
        y = self.norm(y + y.mean((0, 1)))[:, None]
        y = nn.functional.scaled_dot_product_attention(y, y, y)
        return torch.softmax(self.out(y), -1)


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    """Its plan."""
    return optfuse.optimize(Model().eval(), (torch.randn(4, 8, 24, 24),), name="net")  # type: ignore[return-value]


def devices(count: int) -> list[Device]:
    """The shipped one with every figure moved."""
    draw = random.Random(0)
    base = load_device("h200")
    found = []
    for _ in range(count):
        moved = {name: max(1, round(getattr(base, name) * draw.uniform(0.3, 3))) for name in FIELDS}
        moved["library_overlap_percent"] %= 100
        found.append(replace(base, **moved))
    return found


def document(schedule: Schedule) -> dict[str, object]:
    """What a bench would write, had it measured the predictions."""
    kernels = [
        {"graph": "net", "position": k, "measured_us": kernel_cost(schedule.instance, one.ops, one.scheme) / PS}
        for k, one in enumerate(schedule.solution.kernels)
    ]
    return {"kernels": kernels, "yardstick": {"gap_us": 0.0}}


def test_predictions_are_the_cost_models(schedule: Schedule, tmp_path: Path) -> None:
    schedule.save(tmp_path / "net", weights=False)
    for device in devices(2):
        instance = extract(schedule.graph, device, allocates=lambda call: not takes_out(call)).instance
        for k, kernel in enumerate(schedule.solution.kernels):
            found = document(schedule)
            found["kernels"] = [{"graph": "net", "position": k, "measured_us": 1.0}]
            (sample,) = read_samples(found, tmp_path)
            expected = kernel_cost(instance, kernel.ops, kernel.scheme)
            # operations and picoseconds are whole numbers there
            assert predicted_ps(sample, device) == pytest.approx(expected, rel=2e-3, abs=30)


def test_what_was_predicted_is_found_again(schedule: Schedule, tmp_path: Path) -> None:
    schedule.save(tmp_path / "net", weights=False)
    samples = read_samples(document(schedule), tmp_path)
    assert sum(sample.count for sample in samples) == len(schedule.solution.kernels)
    base = schedule.instance.devices[0]
    wrong = replace(base, launch_ps=3 * base.launch_ps, library_start_ps=base.library_start_ps // 3)
    found = refine(wrong, samples)
    assert error(base, samples) == pytest.approx(0, abs=1e-3)
    assert error(found, samples) < 0.2 * error(wrong, samples)
    assert quality(found, samples).median_relative_error < 0.05


def test_a_plan_that_was_not_measured_is_refused(schedule: Schedule, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="net"):
        read_samples(document(schedule), tmp_path)
    schedule.save(tmp_path / "net", weights=False)
    found = document(schedule)
    found["kernels"] = [{"graph": "net", "position": 99, "measured_us": 1.0}]
    with pytest.raises(PlanError, match="no kernel 99"):
        read_samples(json.loads(json.dumps(found)), tmp_path)
