"""What a part's operators take a GPU, roughly, and what is done where the host takes longer."""

from __future__ import annotations

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

from optfuse.compiler.frontend.parts import host_bound
from optfuse.compiler.frontend.parts.host_bound import BYTES, NEW_SIZES_US, OPERATIONS, HostBound, gpu_us
from tests.torch_compile.test_torch_compile import Compiler, compiled

__all__ = ["compiled"]


def traced() -> tuple[GraphModule, sympy.Basic]:
    """A product, an activation, a view and a write, of a changing number of rows of 32; and that number's symbol."""
    graphs: list[GraphModule] = []

    def keep(graph: GraphModule, _: object) -> GraphModule:
        graphs.append(graph)
        return graph

    def function(x: Tensor, w: Tensor) -> Tensor:
        return F.linear(x, w).relu().view(-1, 8, 8).mul_(2)

    torch._dynamo.reset()  # noqa: SLF001 - its public face
    x = torch.randn(6, 32)
    torch._dynamo.mark_dynamic(x, 0)  # noqa: SLF001 - its public face
    torch.compile(function, backend=keep)(x, torch.randn(64, 32))
    (graph,) = graphs
    tensors = (node.meta["example_value"] for node in graph.graph.find_nodes(op="placeholder"))
    (shape,) = (x.shape for x in tensors if isinstance(x, Tensor) and x.shape[1] == 32 and x.shape[0] != 64)
    return graph, shape[0].node.expr


def test_bytes_and_products_are_counted_and_views_are_not() -> None:
    graph, rows = traced()
    taken, made, weight = 4 * 32 * 1000, 4 * 64 * 1000, 4 * 64 * 32
    moved = (taken + weight + made) + 2 * made + 2 * made
    wanted = moved / BYTES + 2 * 32 * 64 * 1000 / OPERATIONS
    assert gpu_us(graph, {rows: 1000}) == pytest.approx(wanted)
    assert gpu_us(graph, {rows: 0}) < 0.01


def test_without_a_gpu_the_host_is_never_said_to_take_longer() -> None:
    graph, rows = traced()
    assert not HostBound(graph, (rows,)).holds((100,), [torch.ones(100, 32)])


@pytest.mark.parametrize("first", [0, 3, 100_000_000])
def test_a_price_is_that_of_the_sizes_whatever_came_first(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    monkeypatch.setattr(host_bound, "is_on_gpu", lambda _: True)
    graph, rows = traced()
    part = HostBound(graph, (rows,))
    part.holds((first,), [])
    for size in (10, 300_000, 10_000_000):
        assert part.holds((size,), []) == (gpu_us(graph, {rows: size}) < 2 * NEW_SIZES_US)


def test_parts_that_the_host_takes_longer_for_run_as_traced(
    compiled: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_bound, "is_on_gpu", lambda _: True)

    def function(x: Tensor) -> Tensor:
        return (x[x > 0] * 2).exp() + 1

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):  # noqa: SLF001 - its public face
        fast = compiled(function)
        x = torch.randn(5, 6)
        torch.testing.assert_close(fast(x), function(x))
        (run,) = compiled.runs
        assert [name for name in compiled.names() if "part3" in name] == []
        (said,) = [reason for name, reason in run.record.unplanned if name == "compiled0.part3"]
        assert said.startswith("the host takes longer for it than the GPU")
        monkeypatch.setattr(host_bound, "NEW_SIZES_US", 1e-9)
        x = torch.randn(6, 7)
        torch.testing.assert_close(fast(x), function(x))
        assert any("part" in name for name in compiled.names())
