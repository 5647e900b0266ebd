"""Every model of the zoo under ``dynamic=True`` at three sizes: results are eager's, of one schedule for all."""

from __future__ import annotations

import pytest

from tests.torch_compile.test_torch_compile import Compiler, compiled
from tests.torch_compile.zoo_sizes import CASES, Axis, check_at_sizes

__all__ = ["compiled"]


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(("name", "axis"), CASES, ids=[f"{name}-{axis}" for name, axis in CASES])
@pytest.mark.spread(200, 56)
def test_models_at_sizes_that_change(compiled: Compiler, name: str, axis: Axis, train: bool) -> None:
    check_at_sizes(compiled, name, axis, train, "cpu", most=1e-4)
