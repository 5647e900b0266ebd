"""A decode step that can be repeated, in bfloat16 and int8, as a row of a bench."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from optfuse.errors import InvalidOptionError
from optfuse.lab.bench.decode import DecodeStep, Int8Linear, in_int8
from optfuse.lab.bench.meter import CpuMeter
from optfuse.lab.bench.records import Settings, Task
from optfuse.lab.bench.systems import load_case
from optfuse.lab.bench.worker import work

MODELS = Path(__file__).parents[3] / "models"
SETTINGS = Settings(size="small", time_limit=3.0, workers=1, seconds=0.01, cache=16)


def llama(batch: int = 3, *, int8: bool = False) -> Any:
    task = Task(str(MODELS / "llama.py"), "llama", False, (), batch, int8)
    return load_case(task, SETTINGS, torch.device("cpu"))


def test_a_step_is_what_the_whole_sequence_gives() -> None:
    case = llama()
    model, ids = case.model.model, case.args[0]
    past = (torch.arange(3 * 8) % 131).view(3, 8)
    expected = model(input_ids=torch.cat([past, ids], 1)).logits[:, -1:]
    with torch.no_grad():
        first, again = case.model(ids), case.model(ids)
    torch.testing.assert_close(first, expected, rtol=2e-2, atol=2e-2)
    assert torch.equal(first, again), "each call writes the same place of the cache"


def test_a_copy_in_float64_has_a_cache_of_its_own() -> None:
    case = llama()
    wide = copy.deepcopy(case.model).double()
    assert wide.cache.layers[0].keys.dtype == torch.float64
    assert case.model.cache.layers[0].keys.dtype == torch.bfloat16
    with torch.no_grad():
        torch.testing.assert_close(
            wide(case.args[0]).to(torch.bfloat16), case.model(case.args[0]), rtol=2e-2, atol=2e-2
        )


def test_int8_layers() -> None:
    linear = torch.nn.Linear(40, 7)
    model = in_int8(torch.nn.Sequential(linear, torch.nn.ReLU()))
    x = torch.randn(2, 40)
    assert isinstance(model[0], Int8Linear)
    assert model[0].weight.dtype == torch.int8
    torch.testing.assert_close(model(x), linear(x).relu(), rtol=0.0, atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("int8", [False, True], ids=["bfloat16", "int8"])
def test_a_row(int8: bool) -> None:
    found: list[dict[str, Any]] = []
    task = Task(str(MODELS / "llama.py"), "llama", False, ("eager", "optfuse-compile"), 1, int8)
    work([task], SETTINGS, found.append, time.monotonic() + 600, CpuMeter(), warm_up=False)
    (ours,) = (event for event in found if event.get("system") == "optfuse-compile" and event["event"] == "done")
    assert ours["row"] == ("llama int8 decode 1" if int8 else "llama decode 1")
    assert ours["check"]["passed"] is True
    assert ours["check"]["against"] == "float64"
    assert "note" not in ours, "a graph was not scheduled"


def test_a_model_without_a_cache() -> None:
    with pytest.raises(InvalidOptionError, match="Linear has no decode step"):
        DecodeStep(torch.nn.Linear(2, 2), 1, 16)
