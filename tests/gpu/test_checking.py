"""Every launch and call of training steps that once went wrong on a GPU, by itself: a failure names the kernel."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import optfuse
from optfuse.compiler.frontend.zoo import load_model_file

pytestmark = [
    pytest.mark.usefixtures("exact_products"),
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

MODELS = Path(__file__).parent.parent.parent / "models"
OPTIONS = optfuse.SolveOptions(time_limit=5, workers=8)
#: The model with numbers in the host's memory, those with torch's own recurrent layer and without, and a plain one.
NAMES = ("deberta", "lstm", "lstm_cells", "gpt2")


@cache
def scheduled(name: str, train: bool, dtype: torch.dtype) -> tuple[Any, Any, Any]:
    """The schedule at the small size on the GPU, and the arguments. Dropout is in: its numbers have a reference."""
    entry = load_model_file(MODELS / f"{name}.py")
    model = entry.model("small", dtype).cuda().train(train)
    args, kwargs = pytree.tree_map_only(torch.Tensor, lambda x: x.cuda(), entry.inputs("small", dtype, train=train))
    return optfuse.optimize(model, args, kwargs, train=train, options=OPTIONS, name=name), args, kwargs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("placement", ["apart", "planned"])
@pytest.mark.parametrize("name", NAMES)
def test_every_step_is_right(name: str, placement: Any, train: bool, dtype: torch.dtype) -> None:
    schedule, args, kwargs = scheduled(name, train, dtype)
    report = optfuse.check_steps(schedule, args, kwargs, placement=placement)
    assert report.passed, f"{report}\n{report.table()}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", NAMES)
def test_replays_compute_what_the_program_does(name: str, train: bool, dtype: torch.dtype) -> None:
    schedule, args, kwargs = scheduled(name, train, dtype)
    checks = optfuse.check_replays(schedule, args, kwargs)
    assert all(check.passed for check in checks), [check for check in checks if not check.passed]
    assert any(check.replayed for check in checks), {check.reason for check in checks}


def test_numbers_on_the_host_are_what_they_are_in_eager() -> None:
    """One that is the same everywhere, one computed from an input, and one that kernels read; through graphs, too."""

    class Mixed(torch.nn.Module):
        def forward(self, x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
            scale = torch.sqrt(torch.tensor(16.0) * 3)
            root = torch.sqrt(n)
            return x / scale + root, scale, root + 1

    x = torch.randn(33, device="cuda")
    for choice in (False, "auto", True):
        schedule = optfuse.optimize(Mixed(), (x, torch.tensor(2.0)), options=OPTIONS, name="mixed")
        program = schedule.compile(cudagraphs=choice)  # type: ignore[call-arg]
        for k in range(4):
            given = (x + k, torch.tensor(2.0 + k))
            for got, wanted in zip(program(*given), Mixed()(*given), strict=True):
                assert got.device == wanted.device
                torch.testing.assert_close(got, wanted)
