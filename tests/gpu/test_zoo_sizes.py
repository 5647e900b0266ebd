"""Every model of the zoo under ``dynamic=True`` at three sizes on a GPU: eager's results, one schedule for all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.torch_compile.test_torch_compile import Compiler, compiled
from tests.torch_compile.zoo_sizes import BY_SIZE, CASES, Axis, distances_at_sizes, trains

__all__ = ["compiled"]

pytestmark = [
    pytest.mark.usefixtures("exact_products", "graphs_at_once"),
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()  # noqa: SLF001 - its public face
    torch.manual_seed(0)
    yield
    torch.cuda.empty_cache()


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(("name", "axis"), CASES, ids=[f"{name}-{axis}" for name, axis in CASES])
def test_models_at_sizes_that_change(compiled: Compiler, name: str, axis: Axis, train: bool) -> None:
    if train and not trains(name):
        pytest.skip("does not train")
    for apart, where in distances_at_sizes(compiled, name, axis, train, "cuda"):
        assert apart < 1e-3, where
    left = [pair for run in compiled.runs for pair in (*run.record.unplanned, *run.record.by_size)]
    assert left == [] or (name, axis) in BY_SIZE
