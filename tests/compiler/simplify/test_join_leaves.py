"""Second stages whose results only leave the graph: which are joined, and that results stay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from optfuse.compiler.ir.interpreter import interpret
from optfuse.compiler.ir.nodes import LoopGraph, LoopNest
from optfuse.compiler.ir.verify_graph import verify
from optfuse.compiler.simplify.join_leaves import join_leaves
from optfuse.compiler.simplify.split_reductions import split_reductions
from optfuse.problem.device_files import load_device
from tests.compiler.extract.functions import graph_of

DEVICE = load_device("h200")
ROWS, COLUMNS = 4096, 8


def sums(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Sums over rows: one as it is, one rounded, one of another size, one that is used again, one mean."""
    a, b, c, d = tensors
    used = (d * 2).sum(0)
    return a.sum(0), b.float().sum(0).bfloat16(), c.sum(0), (d - used).sum(0), (a * 3).mean(0)


def tensors() -> list[Tensor]:
    make = torch.Generator().manual_seed(0)
    return [torch.randn(ROWS, n, generator=make) for n in (COLUMNS, COLUMNS, COLUMNS * 2, COLUMNS)]


def split(function: Any = sums) -> LoopGraph:
    return split_reductions(graph_of(function, *tensors()), DEVICE)


def widths(graph: LoopGraph) -> list[int]:
    """How many reductions there are in each second stage."""
    stages = [op for op in graph.ops if isinstance(op, LoopNest) and op.reductions and "_partial" not in op.name]
    return sorted(len(nest.reductions) for nest in stages)


@pytest.mark.parametrize(("most", "expected"), [(16, [1, 1, 4]), (3, [1, 1, 1, 3])])
def test_joined(most: int, expected: list[int]) -> None:
    before = split()
    assert widths(before) == [1] * 6
    after = join_leaves(before, most)
    verify(after)
    assert widths(after) == expected
    for ours, theirs in zip(interpret(after, tensors(), {}), sums(*tensors()), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_alone() -> None:
    graph = split(lambda a, b, c, d: (a.sum(0), c.sum(0), b * d))
    assert widths(join_leaves(graph)) == [1, 1]
