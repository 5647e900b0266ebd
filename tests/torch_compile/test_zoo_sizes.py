"""Every model of the zoo under ``dynamic=True`` at three sizes: results are eager's, of one schedule for all."""

from __future__ import annotations

import pytest

from tests.torch_compile.test_torch_compile import Compiler, compiled
from tests.torch_compile.zoo_sizes import BY_SIZE, CASES, Axis, distances_at_sizes, trains

__all__ = ["compiled"]


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(("name", "axis"), CASES, ids=[f"{name}-{axis}" for name, axis in CASES])
@pytest.mark.spread(200, 56)
def test_models_at_sizes_that_change(compiled: Compiler, name: str, axis: Axis, train: bool) -> None:
    if train and not trains(name):
        pytest.skip("does not train")
    for apart, where in distances_at_sizes(compiled, name, axis, train, "cpu"):
        assert apart < 1e-4, where
    left = [pair for run in compiled.runs for pair in (*run.record.unplanned, *run.record.by_size)]
    assert left == [] or (name, axis) in BY_SIZE
