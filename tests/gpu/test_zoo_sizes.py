"""Every model of the zoo under ``dynamic=True`` at three sizes on a GPU: eager's results, one schedule for all."""

from __future__ import annotations

import pytest
import torch

from tests.torch_compile.test_torch_compile import Compiler, compiled
from tests.torch_compile.zoo_sizes import CASES, Axis, check_at_sizes

__all__ = ["compiled"]

pytestmark = [
    pytest.mark.usefixtures("exact_products", "graphs_at_once", "fresh_dynamo"),
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(("name", "axis"), CASES, ids=[f"{name}-{axis}" for name, axis in CASES])
def test_models_at_sizes_that_change(compiled: Compiler, name: str, axis: Axis, train: bool) -> None:
    check_at_sizes(compiled, name, axis, train, "cuda", most=1e-3)
