"""Ranks that start collectives in different orders are told so, and not left waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed

from optfuse.compiler.ir.collectives import is_start
from optfuse.compiler.ir.nodes import Buffer as IrBuffer
from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph, Origin, View
from optfuse.errors import RankOrderError
from optfuse.problem.solution import Kernel, Solution
from optfuse.torch_compile.rank_agreement import require_one_order

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="torch without torch.distributed")


@pytest.fixture
def _group(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group(
        "gloo", store=distributed.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()


def start(name: str, size: int, group: str) -> LibraryCall:
    given = View(f"x{size}", (size,), (1,), 0)
    target = "_c10d_functional.all_reduce.default"
    call = LibraryCall(name, target, (given, "sum", group), (), (name,), Origin(name, target), group=group, ranks=2)
    assert is_start(call)
    return call


def graph_of(*ops: LibraryCall) -> LoopGraph:
    inputs = [IrBuffer(f"x{size}", "float32", (size,), (1,), "input") for size in (4, 8)]
    made = [IrBuffer(op.name, "float32", (4,), (1,), "temporary") for op in ops]
    return LoopGraph("step", (*inputs, *made), ("x4", "x8"), (), ops, ())


def solved(*order: int) -> Solution:
    return Solution("step", "", tuple(Kernel((op,), 0) for op in order))


@pytest.mark.usefixtures("_group")
def test_another_order_than_the_first_ranks_is_refused() -> None:
    first = graph_of(start("a", 4, "0"), start("b", 8, "0"))
    require_one_order(first, solved(0, 1), Counter())  # each with a count of its own, as ranks have
    require_one_order(first, solved(0, 1), Counter())
    with pytest.raises(RankOrderError, match=r"step: rank 0 starts the 2 collectives of group '0' in another order"):
        require_one_order(first, solved(1, 0), Counter())


@pytest.mark.usefixtures("_group")
def test_graphs_of_other_collectives_are_not_compared() -> None:
    require_one_order(graph_of(start("a", 4, "0"), start("b", 8, "0")), solved(0, 1), Counter())
    require_one_order(graph_of(start("b", 8, "0")), solved(0), Counter())
    require_one_order(graph_of(start("b", 8, "1"), start("a", 4, "1")), solved(0, 1), Counter())


def test_without_a_process_group_there_is_nothing_to_compare() -> None:
    assert not torch.distributed.is_initialized()
    require_one_order(graph_of(start("a", 4, "0")), solved(0), Counter())
