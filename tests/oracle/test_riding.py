"""Sums over rows that ride in kernels that walk the rows: whole training steps against eager and float64."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import optfuse
from optfuse.errors import InvalidOptionError
from optfuse.extract.build import extract_variants
from optfuse.extract.device import load_device
from optfuse.extract.variants import riders
from optfuse.ir.nodes import LibraryCall, LoopGraph
from optfuse.problem.checker import check
from optfuse.problem.instance import Device
from optfuse.runtime.environment import mode
from optfuse.runtime.loader import load_source
from optfuse.schedule import TrainingSchedule
from tests.oracle.judging import OPTIONS, assert_all_pass, judge_program

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")


class Block(nn.Module):
    """A layer norm with weight and bias, a residual sum and a GELU behind a bias of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.linspace(-1, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both ways."""
        return x + F.gelu(self.norm(x) + self.bias)


class Gelu(nn.Module):
    """No row is reduced in any graph of this."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.linspace(-1, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        """A GELU behind a bias."""
        return F.gelu(x + self.bias)


@pytest.fixture
def few_programs(tmp_path: Path) -> Callable[[int], str]:
    """A device file on which so many programs fill the device, launches cost nothing, and rows in turn are not dear."""

    def write(programs: int) -> str:
        facts = json.loads((Path(load_device.__code__.co_filename).parent / "devices/h200.json").read_text())
        facts |= {"name": "few", "saturating_programs": programs, "launch_ps": 1, "ramp_ps": 0, "l2_bytes": 0}
        facts |= {"column_percent": 100}
        path = tmp_path / "few.json"
        path.write_text(json.dumps(facts))
        return str(path)

    return write


def all_that_may(
    graph: LoopGraph, device: Device, donated: frozenset[str], allocates: Callable[[LibraryCall], bool]
) -> frozenset[str]:
    """In the place of ``choose_riders``: whatever it costs."""
    found = extract_variants(graph, device, "riding", donated=donated, allocates=allocates)[1]
    return frozenset(name for name, _ in found.variants)


def backward_of(model: nn.Module, x: Tensor, device: str) -> TrainingSchedule:
    found = optfuse.optimize(model, (x,), train=True, options=OPTIONS, device=device, variants="riding", name="case")
    assert isinstance(found, TrainingSchedule)
    assert riders(found.backward.graph)
    assert check(found.backward.instance, found.backward.solution) == ()
    return found


@pytest.mark.parametrize("kind", [Block, Gelu])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((512, 64), torch.float32), ((3, 337, 61), torch.float32), ((5, 203, 200), torch.bfloat16)],
    ids=["even", "ragged", "bfloat16"],
)
def test_gradients_of_biases_and_weights_ride(
    kind: Callable[[int], nn.Module],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    few_programs: Callable[[int], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr("optfuse.pipeline.choose_riders", all_that_may)
    model = kind(shape[-1]).to(dtype)
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    found = backward_of(model, x, few_programs(3))
    assert_all_pass(judge_program(found.compile(), model, (x,), {}, train=True))


def test_programs_that_get_fewer_rows_than_a_block(few_programs: Callable[[int], str]) -> None:
    model, x = Block(8), torch.randn(299, 8, requires_grad=True)
    found = backward_of(model, x, few_programs(4))  # runs of 10 rows: blocks of 16, and a last run of 9
    table = load_source(found.backward.source).KERNELS
    functions = re.findall(r"^def (k\w+)\((.*?)^@triton", found.backward.source, re.MULTILINE | re.DOTALL)
    blocks = [table[name]["interpret"]["XBLOCK"] for name, text in functions if "range(first, last" in text]
    assert blocks
    assert min(blocks) > 10
    assert_all_pass(judge_program(found.compile(), model, (x,), {}, train=True))


def test_a_step_is_bound_again_to_the_decisions_that_it_was_made_with(few_programs: Callable[[int], str]) -> None:
    model, x = Block(64), torch.randn(512, 64, requires_grad=True)
    found = backward_of(model, x, few_programs(3))
    found.compile()
    assert_all_pass(judge_program(found.compile(), model, (x,), {}, train=True))


def test_a_saved_plan_has_its_riders(few_programs: Callable[[int], str], tmp_path: Path) -> None:
    found = backward_of(Block(64), torch.randn(512, 64, requires_grad=True), few_programs(3)).backward
    found.save(tmp_path / "plan")
    again = optfuse.load(tmp_path / "plan")
    assert again.graph == found.graph
    assert riders(again.graph) == riders(found.graph)


def test_the_choice_is_named_when_there_is_no_such() -> None:
    with pytest.raises(InvalidOptionError, match="rule, riding, not 'walking'"):
        optfuse.optimize(nn.ReLU(), (torch.ones(3),), variants="walking")  # type: ignore[arg-type]
