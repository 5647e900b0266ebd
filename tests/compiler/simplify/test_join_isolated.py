"""Small computations that share no value with others become one op, and results stay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import optfuse
from optfuse.compiler.frontend.tracing.inference import capture
from optfuse.compiler.ir.nodes import LoopGraph, LoopNest
from optfuse.compiler.ir.verify_graph import verify
from optfuse.compiler.simplify.join_isolated import join_isolated
from optfuse.compiler.stages import lowered
from tests.oracle.judging import OPTIONS


class Counted(nn.Module):
    """Counts its calls in several buffers, one of them by twos and one of another size, beside what it returns."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        for k in range(count):
            self.register_buffer(f"calls{k}", torch.tensor(k))
        self.register_buffer("pair", torch.tensor([1, 2]))

    def forward(self, x: Tensor) -> Any:
        for k in range(self.count):
            self.get_buffer(f"calls{k}").add_(2 if k == 1 else 1)
        self.get_buffer("pair").add_(1)
        return (x.exp() * self.get_buffer("calls0")).sum(0)


def graph_of(model: nn.Module, *args: Tensor) -> LoopGraph:
    return lowered(capture(model, args, {}, name="model"))


def nests(graph: LoopGraph) -> list[LoopNest]:
    return [op for op in graph.ops if isinstance(op, LoopNest)]


def test_alike_and_alone_become_one() -> None:
    before = graph_of(Counted(5), torch.randn(3, 4))
    after = join_isolated(before)
    verify(after)
    assert len(nests(before)) - len(nests(after)) == 2 * (4 - 1)  # the first count is read, the pair is of another size
    assert sorted(len(nest.stores) for nest in nests(after))[-2:] == [4, 4]
    stores = [store for nest in nests(before) for store in nest.stores]
    assert sorted(map(str, stores)) == sorted(str(store) for nest in nests(after) for store in nest.stores)


def test_values() -> None:
    model, expected, x = Counted(5), Counted(5), torch.randn(3, 4)
    schedule = optfuse.optimize(model, (x,), options=OPTIONS)
    program = schedule.compile()
    for _ in range(2):
        torch.testing.assert_close(program(x), expected(x))
    for name, value in expected.named_buffers():
        assert torch.equal(model.get_buffer(name), value), name


def test_batch_norms_count_in_one_kernel() -> None:
    model = nn.Sequential(*(nn.BatchNorm1d(4) for _ in range(2))).train()
    schedule = optfuse.optimize(model, (torch.randn(6, 4),), train=True, options=OPTIONS).forward
    ops = schedule.instance.ops
    counting = [k for k in schedule.solution.kernels if any(ops[op].name.endswith("_update") for op in k.ops)]
    assert [k for k in counting if schedule.instance.schemes[k.scheme].x == 1] == counting[:1]


@pytest.mark.parametrize(("most", "sizes"), [(4, {4}), (3, {3, 1})])
def test_no_more_than_a_kernel_takes(most: int, sizes: set[int]) -> None:
    after = join_isolated(graph_of(Counted(5), torch.randn(3, 4)), most)
    verify(after)
    assert {len(nest.stores) for nest in nests(after) if len(nest.stores) > 1 or 1 in sizes} == sizes


def test_nothing_alone_nothing_changes() -> None:
    graph = graph_of(nn.Softmax(-1), torch.randn(3, 4))
    assert join_isolated(graph) == graph
