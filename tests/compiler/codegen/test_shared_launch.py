"""Kernels of one launch: what they compute, given their tensors as arguments or in a table, and what is emitted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import optfuse
from optfuse.api import Schedule
from optfuse.compiler.codegen.shared_launch import MOST_BRANCHES
from optfuse.solver.control.options import SolveOptions

OPTIONS = SolveOptions(workers=1, time_limit=20)


class Several(nn.Module):
    """Independent computations of different forms and sizes."""

    def forward(self, tensors: list[Tensor]) -> list[Tensor]:
        results = []
        for k, x in enumerate(tensors):
            if k % 3 == 2:
                results.append(torch.softmax(x, -1))
            elif x.is_floating_point():
                results.append((x * 2).relu() if k % 2 else x.abs())
            else:
                results.append(~x if x.dtype is torch.bool else x + k)
        return results


KINDS = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int8, torch.uint8, torch.bool)


def tensors(count: int) -> list[Tensor]:
    torch.manual_seed(0)
    found = [torch.randn(2 * k + 1, 3) * 2 for k in range(count)]
    return [x if k % 3 == 2 else x.to(KINDS[k % len(KINDS)]) for k, x in enumerate(found)]


@pytest.mark.spread(2)
@pytest.mark.parametrize("count", [5, MOST_BRANCHES + 1])
def test_kernels_of_one_launch_compute_what_they_compute_alone(count: int) -> None:
    given = tensors(count)
    schedule = optfuse.optimize(Several(), (given,), options=OPTIONS)
    alone = optfuse.optimize(Several(), (given,), options=replace(OPTIONS, share_launches=False))
    assert isinstance(schedule, Schedule)
    assert isinstance(alone, Schedule)
    assert (schedule.launches, alone.launches) == (1, count)
    assert ("launch_in_table" in schedule.source) == (count > MOST_BRANCHES)
    found, expected = schedule.compile()(given), alone.compile()(given)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    torch.testing.assert_close(found, Several()(given))


def test_kernels_that_differ_in_their_number_of_programs_are_one_function() -> None:
    class Scaled(nn.Module):
        def forward(self, tensors: list[Tensor]) -> list[Tensor]:
            return [x * 2 + 1 for x in tensors]

    given = [torch.randn(128 * (k + 1)) for k in range(MOST_BRANCHES + 4)] + [torch.randn(1000)]
    schedule = optfuse.optimize(Scaled(), (given,), options=OPTIONS)
    assert isinstance(schedule, Schedule)
    assert schedule.launches == 1
    assert schedule.source.count("_part0(program") == 1
    assert schedule.source.count("_part1(program") == 1, "what needs a mask"
    assert "_part2" not in schedule.source
    torch.testing.assert_close(schedule.compile()(given), Scaled()(given))


@pytest.mark.slow
def test_a_table_follows_tensors_that_move() -> None:
    given = tensors(MOST_BRANCHES + 1)
    program = optfuse.optimize(Several(), (given,), options=OPTIONS).compile()
    program(given)
    for _ in range(9):
        moved = [torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape).copy_(x) for x in given]
        torch.testing.assert_close(program(moved), Several()(moved))


def test_a_plan_keeps_launches_and_each_is_checked(tmp_path: Path) -> None:
    given = tensors(6)
    schedule = optfuse.optimize(Several(), (given,), options=OPTIONS)
    assert isinstance(schedule, Schedule)
    assert optfuse.check_steps(schedule, (given,)).passed
    schedule.save(tmp_path)
    loaded = optfuse.load(tmp_path)
    assert isinstance(loaded, Schedule)
    assert (loaded.launches, loaded.solution) == (1, schedule.solution)
    assert loaded.result.statistics.sharing == schedule.result.statistics.sharing
    assert "6 kernels run in 1 launch (" in schedule.report()
    first, *_, last = (op.name for op in schedule.instance.ops)
    assert "in two kernels of one launch" in str(schedule.explain(first, last))
