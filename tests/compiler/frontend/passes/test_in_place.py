"""Updates in place: as eager execution computes, with no copy of the tensor, and not where the old value is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from optfuse.compiler.ir.nodes import LoopNest
from optfuse.runtime.environment import mode
from optfuse.torch_compile.backend import backend

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")

OPTIONS = {"time_limit": 5, "workers": 1}
ROW = torch.tensor([3])


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()  # noqa: SLF001 - its public face
    torch.manual_seed(0)


def interruptibly(cache: Tensor, new: Tensor) -> Any:
    """A step of decoding: reads the cache before and after a row of it is written."""
    before = cache.sum()
    cache.index_copy_(0, ROW, new)
    return torch.softmax(new @ cache.t(), -1) @ cache, before


def windows(x: Tensor, new: Tensor) -> Any:
    x[5:6] = new
    x[9] = new[0] * 2
    return x.sum(0), x[:2] + 1


def twice(x: Tensor, new: Tensor) -> Any:
    x.index_copy_(0, ROW, new)
    between = x.exp().sum(0)
    x.index_copy_(0, ROW + 1, between[None])
    return between, x.sum(1)


def through_a_view(x: Tensor, new: Tensor) -> Any:
    x.t().index_copy_(1, ROW, new.t())
    return x.sum(0)


def own_value(x: Tensor, new: Tensor) -> Any:
    y = x * 2
    before = y.sum(0)
    y[ROW] = new
    return y.exp(), before


def scattered(x: Tensor, new: Tensor) -> Any:
    places = torch.tensor([[1, 2]]).expand(128, 2)
    x.scatter_(1, places, new.t().expand(128, 2)[:, :2])
    x.index_add_(0, ROW, new, alpha=0.5)
    x.index_fill_(1, ROW, 7.0)
    return x * 2


def old_value_too(x: Tensor, new: Tensor) -> Any:
    old = x.clone()
    x[ROW] = new
    return x * old.cos()


def returned(x: Tensor, new: Tensor) -> Any:
    y = x.index_copy(0, ROW, new)
    x.copy_(y)
    return y


def old_value_returned(x: Tensor, new: Tensor) -> Any:
    y = x * 2
    z = y.index_copy(0, ROW, new)
    return y, z


def reads_itself(x: Tensor, new: Tensor) -> Any:
    x.copy_(x.index_copy(0, ROW, x[:1]))
    x.copy_(x.index_add(1, torch.arange(128) % 3, x))
    return x + new


def run(function: Callable[..., Any], *, train: bool = False) -> Any:
    """Compare with eager, arguments that are written included; the schedule of the (forward) graph is returned."""
    runs = []

    def spy(graph: Any, inputs: Any, **more: Any) -> Any:
        runs.append(backend(graph, inputs, **more))
        return runs[-1]

    x, new = torch.randn(128, 128), torch.randn(1, 128, requires_grad=train)
    mine, theirs = (x.clone(), new.detach().clone().requires_grad_(train)), (x.clone(), new)
    got = torch.compile(function, backend=spy, options=OPTIONS)(*mine)
    wanted = function(*theirs)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mine[0], theirs[0], rtol=1e-4, atol=1e-4)
    if train:
        for results in (got, wanted):
            sum(y.sum() for y in torch.utils._pytree.tree_leaves(results) if y.requires_grad).backward()  # noqa: SLF001
        torch.testing.assert_close(mine[1].grad, theirs[1].grad, rtol=1e-4, atol=1e-4)
    assert not [pair for one in runs for pair in one.record.unplanned]
    return runs[0].record.schedules[0]


@pytest.mark.spread(2)
@pytest.mark.parametrize("function", [interruptibly, windows, twice, own_value, scattered])
def test_updates_are_written_in_place(function: Callable[..., Any]) -> None:
    schedule = run(function)
    written = [op for op in schedule.library_ops if op.split(".")[1].endswith("_")]
    loops = [op for op in schedule.graph.ops if isinstance(op, LoopNest) and op.origin.target.startswith("aten.index_")]
    assert written or loops
    assert all(op.origin.target.endswith("_.default") and op.stores[0].indirect for op in loops), "none of them copies"
    assert not {op.replace("_.", ".") for op in written} & set(schedule.library_ops), "none is left that copies"
    assert not [op for op in schedule.graph.ops if op.name.endswith("_update")], "nothing is copied back"


@pytest.mark.spread(2)
@pytest.mark.parametrize("function", [old_value_too, returned, old_value_returned, through_a_view, reads_itself])
def test_others_are_right(function: Callable[..., Any]) -> None:
    run(function)


@pytest.mark.spread(3)
@pytest.mark.parametrize("function", [interruptibly, windows, twice, own_value, scattered, old_value_too])
def test_gradients(function: Callable[..., Any]) -> None:
    run(function, train=True)


def test_an_update_is_priced_by_what_it_writes() -> None:
    schedule = run(interruptibly)
    names = [op.name for op in schedule.instance.ops]
    (offer,) = schedule.instance.ops[names.index("index_copy")].offers
    cache = next(k for k, buffer in enumerate(schedule.instance.buffers) if buffer.bytes == 128 * 128 * 4)
    assert {read.buffer: read.bytes for read in offer.reads}[cache] == 0
    assert {write.buffer: write.bytes for write in offer.writes} == {cache: 128 * 4}
