"""Kernels in the order that a step outside of CUDA graphs cuts least, up to the emitted program."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import optfuse
from optfuse.compiler.extract.extraction import Extraction
from optfuse.problem.checker import check
from optfuse.runtime.environment import mode
from optfuse.runtime.program import Program
from optfuse.schedule.emit import emit
from optfuse.schedule.graph_partition import graph_cuts, planned_graphs, with_few_cuts
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.result import SolveResult
from tests.oracle.judging import OPTIONS, Function

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")

X, W = torch.randn(16, 16), torch.randn(16, 16) / 4


@torch.library.custom_op("optfuse_tests::waits", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def waits(x: Tensor) -> Tensor:
    """An operator that waits for the device."""
    return x * float(x.max())


@waits.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def branches(x: Tensor, w: Tensor) -> Tensor:
    """Three chains, each with a step that waits in the middle."""
    total = x
    for k in range(3):
        y = waits(torch.softmax(x @ w * (k + 1), -1)) @ w
        total = total + torch.softmax(y, -1) @ w
    return total


def solved(options: SolveOptions = OPTIONS) -> tuple[Extraction, SolveResult, optfuse.Schedule]:
    """The schedule of ``branches`` as it were on a GPU, each branch behind the other."""
    schedule = optfuse.optimize(Function(branches), (X, W), options=options)
    graph = schedule.graph
    there = tuple(replace(buffer, device="cuda:0") for buffer in graph.buffers)
    return replace(schedule.extraction, graph=replace(graph, buffers=there)), schedule.result, schedule


def groups(extraction: Extraction, result: SolveResult) -> int:
    """How often steps outside of graphs come after others."""
    marked = graph_cuts(extraction.graph)
    outside = [any(op in marked for op in kernel.ops) for kernel in result.solution.kernels]
    return sum(here and not before for before, here in zip([False, *outside], outside, strict=False))


def test_steps_outside_are_brought_together(tmp_path: Path) -> None:
    extraction, result, schedule = solved(replace(OPTIONS, order="program"))
    assert not graph_cuts(schedule.graph), "a program on the host is not cut"
    assert groups(extraction, result) == 3
    few = with_few_cuts(extraction, result, replace(OPTIONS, order="memory"))
    assert few.solution.peak_bytes <= 1.05 * result.solution.peak_bytes
    assert groups(extraction, few) == 1
    assert planned_graphs(extraction, few.solution) == 2
    assert planned_graphs(schedule.extraction, result.solution) == 1
    assert check(extraction.instance, few.solution) == ()
    assert few.objective == result.objective == few.solution.objective
    source = emit(extraction, few)
    assert source.count('apart(\n        "waits') + source.count('apart("waits') == 3
    assert "is marked as unsafe for CUDA graphs" in source
    (got,) = Program(source, folder=tmp_path).run([X, W])
    torch.testing.assert_close(got, branches(X, W), rtol=1e-4, atol=1e-4)


def test_a_schedule_names_its_cuts() -> None:
    extraction, _, schedule = solved()
    assert (schedule.cuda_graph_cuts, schedule.cuda_graphs) == ((), 1)
    there = replace(schedule, extraction=extraction)
    assert len(there.cuda_graph_cuts) == 3
    assert all("waits" in reason and "unsafe for CUDA graphs" in reason for reason in there.cuda_graph_cuts)


def test_the_programs_order_is_kept_where_it_is_asked_for() -> None:
    options = replace(OPTIONS, order="program")
    extraction, result, _ = solved(options)
    assert with_few_cuts(extraction, result, options) is result


def test_an_order_over_the_cap_is_not_taken() -> None:
    extraction, result, _ = solved(replace(OPTIONS, order="program"))
    capped = replace(OPTIONS, peak_memory=str(result.solution.peak_bytes // 2))
    assert with_few_cuts(extraction, result, capped) is result
